"""Settings of a report: the flags of the command, the TOML file and `settings` in report.json.

The module imports the standard library and `_names` only, so that `jaxpriv report --help` is fast.

Example:
  >>> settings = Settings(epsilon=(2.0, 8.0), delta=1e-4, relation="add_or_remove_one")
  >>> settings.shadows, settings.clip_norm
  (16, 1.0)
"""

import math
import tomllib
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jaxpriv._names import RELATIONS, Relation, UnitKind

__all__ = ["PRESETS", "Missing", "Settings", "Unit", "read_toml"]

Unit = UnitKind
"""Units of privacy of a report."""

Missing = Literal["refuse", "drop", "median"]
"""Treatments of missing values."""

_TRAINING = (
    "epsilon", "delta", "relation", "no_dp", "data", "max_records", "label", "group", "exclude",
    "missing", "model", "tokens", "unit", "shadows", "width", "sampling_prob", "clip_norm", "steps",
    "learning_rate", "plain_steps", "plain_learning_rate", "repetitions", "canaries", "sensitive",
)  # fmt: skip
"""Settings that do not apply to a report on outputs."""

_READING = ("label", "group", "exclude", "missing")
"""Settings of the files of records, which also apply with --predict."""

_POSITIVE = (
    "max_records", "shadows", "tokens", "width", "clip_norm", "steps", "learning_rate",
    "plain_steps", "plain_learning_rate", "attack_steps", "claimed_epsilon", "repetitions",
    "canaries",
)  # fmt: skip

_MIN_CANARIES = 20

PRESETS = ("mlp", "cnn", "rnn", "transformer")
"""Names of the networks."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a report; privacy parameters have no defaults."""

    epsilon: tuple[float, ...] = ()
    """Target epsilon(s) of one record, or of one class with --unit class; trains one DP-SGD model
    for each. A group has a larger epsilon, which is reported. Requires --delta and --relation."""
    delta: float | None = None
    """Delta of every guarantee; below 1 / number of members."""
    relation: Relation | None = None
    """Neighbouring relation of the guarantees."""
    no_dp: bool = False
    """Report on the model without DP only."""
    data: str | None = None
    """Data set (see `jaxpriv data list`), .npz, .csv or folder of images by class.
    Default: digits."""
    max_records: int | None = None
    """Number of records to use at most, drawn at random. Default: all."""
    label: str | None = None
    """Name of the class column of a table."""
    group: str | None = None
    """Name of the column of a table with the person or household of each record."""
    exclude: tuple[str, ...] = ()
    """Column(s) of a table that are not inputs, such as identifiers."""
    sensitive: str | None = None
    """Name of an input column of a table whose values are inferred from the models, and imputed
    without them. It has at most 50 values."""
    missing: Missing = "refuse"
    """Treatment of missing values: refuse them, drop the records, or impute the median."""
    model: str | None = None
    """Network: mlp, cnn, rnn, transformer, or FILE.py:make, a function that returns a Flax module,
    optionally with an optax optimiser and a number of steps. Default: cnn for images, rnn for
    series, transformer with --tokens, else mlp."""
    tokens: int | None = None
    """Size of the vocabulary, if the records are rows of token ids. It is taken to be public."""
    scores: str | None = None
    """File SCORES.npz with outputs to report on; no model is trained."""
    predict: str | None = None
    """FILE.py:predict, a function predict(x [n, ...]) -> logits or probabilities [n, classes] of a
    trained model to report on. Requires --members and --nonmembers; no model is trained."""
    members: str | None = None
    """Records that the model of --predict was trained on, as for --data."""
    nonmembers: str | None = None
    """Records of the same distribution that it was not trained on, as for --data."""
    shadows_file: str | None = None
    """File .npz with shadow_logits [m, n, classes] and shadow_is_member [m, n] for the records of
    --members, then --nonmembers. Default: attacks without shadow models."""
    claimed_epsilon: float | None = None
    """Epsilon that was promised for the outputs of --scores or --predict, with --delta and
    --relation; the report states it and cannot verify it."""
    by_coin: bool = False
    """A fair coin of its own decided the membership of each record of --scores or --predict, so
    that epsilon can be bounded from below, at --delta and for --relation."""
    keep_inputs: bool = False
    """Store the inputs of the records in the evidence files, and show images of the most exposed
    members on the page, which are both private then."""
    title: str | None = None
    """Title of the page. Default: the name of the data."""
    unit: Unit | None = None
    """Unit of privacy. Default: group where the data have groups, else record. With class, the
    private models are trained by class-level DP-SGD, on data with at least 20 classes."""
    defence: tuple[str, ...] = ()
    """Defence(s) of the model without DP, as NAME or NAME:ARG=VALUE,ARG=VALUE, such as
    dirichlet:k=10,eta=0.01,b=0.1,delta=1e-5, gaussian:sigma=0.01,pairs=20 or
    adversarial:weight=3."""
    shadows: int = 16
    """Number of shadow models; even and at least 4."""
    width: int | None = None
    """Width of the hidden layer of a preset. Default: 256 (mlp), else 64."""
    sampling_prob: float = 0.1
    """Probability that a batch contains a given record, or class where that is the unit."""
    clip_norm: float = 1.0
    """Clip norm of the per-example gradients of DP-SGD, or of the mean gradient of a class."""
    steps: int | None = None
    """Number of DP-SGD steps. Default: that of the model file, else 400."""
    learning_rate: float | None = None
    """Learning rate of DP-SGD with Adam. Default: 0.01 (mlp, rnn), 0.005 (cnn), else
    0.002."""
    plain_steps: int | None = None
    """Number of steps without DP. Default: that of the model file, else 600."""
    plain_learning_rate: float | None = None
    """Learning rate of Adam without DP. Default: 0.003 (mlp), 0.005 (rnn), else 0.001."""
    attack_steps: int = 1000
    """Number of training steps of each attack that trains a network."""
    repetitions: int | None = None
    """Number of trainings for each epsilon with or without one record, whose noisy gradients the
    differential-identifiability adversary sees. Requires records as units. Default: none."""

    canaries: int | None = None
    """Number of canaries of each kind (constant gradients, wrong labels) in one more training of
    each model, from which epsilon is bounded from below; at least 20. Default: none."""

    def __post_init__(self) -> None:
        self._check_outputs()
        for name in _POSITIVE:
            if getattr(self, name) is not None:
                _check_positive(name, getattr(self, name))
        for name in ("epsilon", "exclude", "defence"):
            given = getattr(self, name)
            if not isinstance(given, tuple):
                wanted = tuple(given) if isinstance(given, list) else (given,)
                raise ValueError(f"Expected a tuple, as in {name}={wanted!r}, got {given!r}.")
        if not 0 < self.sampling_prob <= 1:
            raise ValueError(
                f"Expected 0 < sampling_prob <= 1, got sampling_prob={self.sampling_prob}."
            )
        if self.shadows < 4 or self.shadows % 2:
            raise ValueError(f"Expected an even number of shadows >= 4, got {self.shadows}.")
        if self.unit is not None and self.unit not in typing.get_args(Unit):
            raise ValueError(
                f"Expected unit to be one of {', '.join(typing.get_args(Unit))}, got {self.unit!r}."
            )
        _check_one_of("missing", self.missing, typing.get_args(Missing))
        if self.model is not None and ".py:" not in self.model:
            _check_one_of("model", self.model, (*PRESETS, "FILE.py:make"))
        self._check_sensitive()
        self._check_promise()

    def _check_sensitive(self) -> None:
        if self.sensitive is not None:
            self.refuse(("tokens",), "with --sensitive, a column of a table")
        roles = {"label": [self.label], "group": [self.group], "exclude": self.exclude}
        for name, given in roles.items():
            if self.sensitive is not None and self.sensitive in given:
                raise ValueError(
                    f"Expected an input of the model for --sensitive, got {self.sensitive!r}, "
                    f"which is given as --{name}."
                )

    def _check_promise(self) -> None:
        for epsilon in self.epsilon:
            _check_positive("epsilon", epsilon)
        if len(set(self.epsilon)) < len(self.epsilon):
            raise ValueError(f"Expected different values of epsilon, got {list(self.epsilon)}.")
        if self.delta is not None and not 0 < self.delta < 1:
            raise ValueError(f"Expected 0 < delta < 1, got delta={self.delta}.")
        _check_one_of("relation", self.relation, RELATIONS)
        if self.no_dp and (self.epsilon or self.delta is not None or self.relation is not None):
            raise ValueError("Expected neither --epsilon, --delta nor --relation with --no-dp.")
        if self.epsilon and (self.delta is None or self.relation is None):
            raise ValueError("Expected --delta and --relation with --epsilon.")
        if self.canaries is not None and self.canaries < _MIN_CANARIES:
            raise ValueError(
                f"Expected --canaries of at least {_MIN_CANARIES}, got {self.canaries}."
            )
        if self.canaries is not None and self.unit == "class":
            raise ValueError("Expected no --canaries with --unit class, which has no such records.")
        if self.repetitions is not None and self.unit in ("group", "class"):
            raise ValueError(
                "Expected --unit record for --repetitions, whose adversary identifies one record."
            )

    def check_subject(self) -> None:
        """Raises ValueError unless the settings state the subject and its guarantee."""
        if self.trains and self.no_dp == bool(self.epsilon):
            raise ValueError("Expected either --epsilon with --delta and --relation, or --no-dp.")
        if self.no_dp:
            self.refuse(
                ("steps", "learning_rate"),
                "with --no-dp, whose options are --plain-steps and --plain-learning-rate",
            )
        if self.no_dp and self.canaries is None:
            self.refuse(("clip_norm",), "with --no-dp, which clips no gradient")
        if self.repetitions is not None and self.no_dp:
            raise ValueError("Expected --epsilon for --repetitions, got --no-dp.")

    @property
    def trains(self) -> bool:
        """Whether models are trained, rather than outputs of a trained one examined."""
        return self.scores is None and self.predict is None

    def _check_outputs(self) -> None:
        """Checks the settings of a report on outputs."""
        needs_predict = ("members", "nonmembers", "shadows_file")
        if self.predict is None:
            self.refuse(needs_predict, "without --predict")
        else:
            if self.scores is not None:
                raise ValueError("Expected one of --scores and --predict, got both.")
            if ".py:" not in self.predict:
                raise ValueError(f"Expected FILE.py:predict for --predict, got {self.predict!r}.")
            if self.members is None or self.nonmembers is None:
                raise ValueError("Expected --members and --nonmembers with --predict.")
        if self.trains:
            self.refuse(("claimed_epsilon", "by_coin"), "without --scores or --predict")
            return
        given = "--predict" if self.scores is None else "--scores"
        allowed = () if self.scores else _READING
        if self.claimed_epsilon is not None:
            if self.delta is None or self.relation is None:
                raise ValueError("Expected --delta and --relation with --claimed-epsilon.")
        if self.claimed_epsilon is not None or self.by_coin:
            allowed = (*allowed, "delta", "relation")
        refused = [name for name in _TRAINING if name not in allowed]
        self.refuse(refused, f"with {given}: no model is trained")

    def is_given(self, name: str) -> bool:
        """Returns whether a setting differs from its default."""
        return getattr(self, name) != _default(name)

    def refuse(self, names: Sequence[str], reason: str) -> None:
        """Raises ValueError if one of the named settings differs from its default."""
        given = [name for name in names if self.is_given(name)]
        if given:
            flags = [f"--{name.replace('_', '-')}" for name in given]
            raise ValueError(f"Expected no {', '.join(flags)} {reason}.")


def read_toml(path: str | Path) -> Settings:
    """Reads settings from a TOML file whose keys are the names of the fields.

    Args:
      path: a file with a setting per line, such as `delta = 1e-4`. Hyphens and underscores in
        keys are equivalent.

    Returns:
      The settings; those that the file does not contain have their default.

    Raises:
      ValueError: if the file cannot be read, or if a key or the type of a value is wrong.

    Example:
      >>> import pathlib, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = pathlib.Path(folder, "settings.toml")
      ...     _ = path.write_text("no-dp = true\\nshadows = 32\\n")
      ...     settings = read_toml(path)
      >>> settings.no_dp, settings.shadows, settings.missing
      (True, 32, 'refuse')
    """
    try:
        table = tomllib.loads(Path(path).read_text("utf-8-sig"))
    except OSError as e:
        raise ValueError(f"Expected a TOML file at {path}: {e.strerror}.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise ValueError(f"Expected a TOML file at {path}: {e}.") from None
    types = typing.get_type_hints(Settings)
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in types:
            raise ValueError(
                f"Expected settings of a report in {path}, got {key!r}; the settings are "
                f"{', '.join(sorted(types))}."
            )
        if name in values:
            raise ValueError(f"Expected {key!r} once in {path}.")
        values[name] = _converted(key, value, types[name])
    return Settings(**values)


def _converted(key: str, value: object, kind: Any) -> object:
    """Converts a TOML value to the type of its field: numbers and text, or tuples of them."""
    options = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        entries = value if isinstance(value, list) else [value]
        return tuple(_converted(key, entry, options[0]) for entry in entries)
    if typing.get_origin(kind) is typing.Literal:
        kind = str
        if isinstance(value, str):
            _check_one_of(key, value, options)
    elif options:
        kind = next(option for option in options if option is not type(None))
        return _converted(key, value, kind)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"Expected {key} as {kind.__name__}, got {value!r}.")
    return value


def _default(name: str) -> object:
    return Settings.__dataclass_fields__[name].default


def _check_positive(name: str, value: int | float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"Expected {name} > 0, got {name}={value}.")


def _check_one_of(name: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise ValueError(f"Expected {name} to be one of {', '.join(allowed)}, got {value!r}.")
