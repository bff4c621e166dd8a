"""Evidence: the arrays that a membership attacker has, and their file format, `SCORES.npz`.

    file --load--> evidence --suite--> scores
    evidence --defended--> evidence of an adaptive attacker

In the shapes below `n` counts records (canaries or training runs for an audit), `m` shadow models
and `c` classes.
"""

import dataclasses
import difflib
import io
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Shaped

from jaxpriv import _check, _files, signals

__all__ = ["Evidence", "Predict", "Respond", "defended", "load", "save"]

# Shapes and types are checked at run time, with one-line messages.
_AnyArray = Shaped[np.ndarray, "..."]

Predict = Callable[[PRNGKeyArray, np.ndarray], Float[Array | np.ndarray, "b c"]]
"""`predict(key, inputs [b, ...]) -> logits [b, c]`."""

Respond = Callable[[PRNGKeyArray, Float[Array, " c"]], Float[Array, " c"]]
"""`respond(key, logits) -> logits` of one record: the answer of a defended model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What the attacker of a target model has; absent parts are None.

    The true membership of the records is not part of it.

    inputs [n, ...]: inputs of the records, as the model takes them.
    labels [n]: true classes; may be given as [n, 1] or one-hot.
    logits [n, c]: outputs of the target before the softmax.
    signals [n]: signal of each record under the target; higher = more likely a member.
    shadow_logits [m, n, c], shadow_signals [m, n]: the same under each shadow model.
    shadow_is_member [m, n]: which records each shadow model was trained on.
    unit_id [n]: the group (person, household) of each record.
    population: evidence on records that no model was trained on, with the same shadow models.
    revealed [n]: records whose membership is given to the attacker; no attack is judged on them.
    revealed_is_member [n]: membership of the revealed records; False elsewhere.
    predict: `predict(key, inputs) -> logits`, a query of the target.

    Raises:
      ValueError: for NaN (signals and logits), arrays whose shapes do not fit together, labels
        that do not index the logits, or membership other than 0 and 1.

    Example:
      >>> logits, labels = np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([0, 0])
      >>> evidence = Evidence(logits=logits, labels=labels)
      >>> len(evidence), evidence.correct.tolist()
      (2, [True, False])
    """

    inputs: _AnyArray | None = None
    labels: _AnyArray | None = None
    logits: _AnyArray | None = None
    signals: _AnyArray | None = None
    shadow_logits: _AnyArray | None = None
    shadow_signals: _AnyArray | None = None
    shadow_is_member: _AnyArray | None = None
    unit_id: _AnyArray | None = None
    population: "Evidence | None" = None
    revealed: _AnyArray | None = None
    revealed_is_member: _AnyArray | None = None
    predict: Predict | None = None

    def __post_init__(self) -> None:
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays = {name: np.asarray(value) for name, value in arrays.items() if value is not None}
        for name, value in _checked(arrays).items():
            object.__setattr__(self, name, value)
        if (self.revealed is None) != (self.revealed_is_member is None):
            raise ValueError("Expected revealed and revealed_is_member together, got one of them.")
        _check_population(self)

    def __len__(self) -> int:
        """Number of records, n."""
        return _length({name: getattr(self, name) for name in _ARRAYS})

    @property
    def judged(self) -> Bool[np.ndarray, " n"]:
        """Records on which attacks are judged: all but the revealed ones."""
        return np.ones(len(self), bool) if self.revealed is None else ~self.revealed

    def check_judged(self, is_member: Bool[np.ndarray, " n"]) -> None:
        """Checks that attacks can be judged on these memberships.

        Args:
          is_member: whether each record is a member of the target.

        Raises:
          ValueError: if there are no members or no non-members beside the revealed records.
        """
        beside = "" if self.revealed is None else "the revealed records"
        _check.both_sides(is_member[self.judged], beside=beside)

    @property
    def num_shadows(self) -> int:
        """Number of shadow models, m; 0 without shadow models."""
        for array in (self.shadow_is_member, self.shadow_logits, self.shadow_signals):
            if array is not None:
                return len(array)
        return 0

    @property
    def shadows_vary(self) -> bool:
        """Whether the shadow models include both members and non-members."""
        return self.shadow_is_member is not None and bool(0 < self.shadow_is_member.mean() < 1)

    @property
    def has_shadow_signals(self) -> bool:
        """Whether `signal_arrays` returns signals of the target and of shadow models."""
        sources = (
            (self.signals, self.shadow_signals),
            (self.logits, self.shadow_logits, self.labels),
        )
        return any(all(array is not None for array in arrays) for arrays in sources)

    @property
    def correct(self) -> Bool[np.ndarray, " n"] | None:
        """Whether the target classifies each record correctly; None without logits or labels."""
        if self.logits is None or self.labels is None:
            return None
        return signals.score_records(signals.correctness, self.logits, self.labels) > 0

    def require(self, *names: str) -> tuple[Any, ...]:
        """Returns parts of the evidence, in the order of the names.

        Args:
          names: names of fields, such as "logits".

        Returns:
          The values of the fields.

        Raises:
          ValueError: if one of the parts is absent.
        """
        for name in names:
            if getattr(self, name) is None:
                raise ValueError(f"Expected {name} in the evidence, got none.")
        return tuple(getattr(self, name) for name in names)

    def signal_arrays(
        self, signal: Callable[..., Array]
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "m n"]]:
        """Returns a signal under the target and under each shadow model.

        Signals that are part of the evidence take precedence over those computed from logits.

        Args:
          signal: function of the module `signals`, applied if the evidence has no signals.

        Returns:
          The signals under the target and under the shadow models.

        Raises:
          ValueError: if the evidence lacks both the signals and the logits of either side.
        """
        if self.signals is not None and self.shadow_signals is not None:
            return self.signals, self.shadow_signals
        if self.logits is None or self.shadow_logits is None or self.labels is None:
            raise ValueError("Expected signals, or logits and labels, of target and shadow models.")
        target, shadows = (
            signals.score_records(signal, logits, self.labels)
            for logits in (self.logits, self.shadow_logits)
        )
        return target, shadows


def load(path: str | os.PathLike[str]) -> tuple[Evidence, Bool[np.ndarray, " n"] | None]:
    """Reads evidence from a file written by `save` or by `numpy.savez`.

    Arrays: `is_member [n]` and one of `scores [n]`, `logits [n, c]`; optionally `labels [n]`,
    `inputs [n, ...]`, `group [n]`, `shadow_scores [m, n]`, `shadow_logits [m, n, c]`,
    `shadow_is_member [m, n]`, `revealed [n]`, `revealed_is_member [n]`, and `population_scores`,
    `population_logits`, `population_labels`, `population_inputs`, `population_shadow_scores`,
    `population_shadow_logits` of records that no model was trained on. `scores`, `shadow_scores`
    and `group` become `signals`, `shadow_signals` and `unit_id` of the evidence. Nothing is
    unpickled.

    Args:
      path: path of the .npz file.

    Returns:
      The evidence, and which records are members of the target (None if the file lacks it).

    Raises:
      ValueError: if the file or an array in it is missing, damaged, misspelt or of the wrong kind,
        or if revealed memberships are not the true ones.

    Example:
      >>> import pathlib, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = pathlib.Path(folder) / "scores.npz"
      ...     np.savez(path, scores=np.array([0.3, 0.1]), is_member=np.array([1, 0]))
      ...     evidence, is_member = load(path)
      >>> evidence.signals, is_member
      (array([0.3, 0.1]), array([ True, False]))
    """
    path = Path(path)
    with _files.open_npz(path, "scores") as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        _check_names(names, path)
        arrays = {name: _files.npz_array(archive, name) for name in names if name in _FILE_NAMES}
    if not {"scores", "logits"} & set(arrays):
        raise ValueError(
            f"Expected the arrays 'is_member' and 'scores' or 'logits' in {path.name}, "
            f"got {', '.join(sorted(names)) or 'no arrays'}."
        )
    outputs = sorted({"shadow_scores", "shadow_logits"} & set(arrays))
    if bool(outputs) != ("shadow_is_member" in arrays):
        raise ValueError(
            "Expected shadow_is_member together with shadow_scores or shadow_logits, "
            f"got {outputs[0] if outputs else 'shadow_is_member'} alone."
        )
    truth = arrays.pop("is_member", None)
    parts: dict[str, Any] = {_FILE_NAMES[name]: value for name, value in arrays.items()}
    prefix = "population_"
    population = {
        name.removeprefix(prefix): parts.pop(name)
        for name in list(parts)
        if name.startswith(prefix)
    }
    evidence = Evidence(**parts, population=Evidence(**population) if population else None)
    _warn_of_probabilities(evidence, path)
    if truth is None:
        return evidence, None
    is_member = _check.membership(_check.scores(truth, name="is_member"))
    if len(is_member) != len(evidence):
        raise ValueError(f"Expected is_member of {len(evidence)} records, got {len(is_member)}.")
    _check_revealed(evidence, is_member)
    return evidence, is_member


def save(
    path: str | os.PathLike[str],
    evidence: Evidence,
    is_member: Bool[np.ndarray, " n"] | None = None,
    *,
    private: bool = False,
) -> None:
    """Writes evidence, except `predict`, to a file for `load` and `jaxpriv attack`.

    Args:
      path: path of the .npz file, in an existing folder; an existing file is replaced.
      evidence: what the attacker has.
      is_member: true membership; None leaves it out.
      private: whether only the owner may read the file.

    Raises:
      ValueError: if is_member and the evidence differ in length.
      OSError: if the file cannot be written.

    Example:
      >>> import pathlib, tempfile
      >>> evidence = Evidence(signals=np.array([0.3, 0.1]), unit_id=np.array(["ann", "bob"]))
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = pathlib.Path(folder) / "scores.npz"
      ...     save(path, evidence, np.array([True, False]))
      ...     sorted(np.load(path))
      ['group', 'is_member', 'scores']
    """
    arrays = _stored(evidence)
    if evidence.population is not None:
        arrays |= {f"population_{k}": v for k, v in _stored(evidence.population).items()}
    if is_member is not None:
        arrays["is_member"] = np.asarray(is_member)
        if len(is_member) != len(evidence):
            raise ValueError(
                f"Expected is_member of {len(evidence)} records, got {len(is_member)}."
            )
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    _files.write_whole(Path(path), content.getvalue(), private=private)


def defended(
    key: PRNGKeyArray, evidence: Evidence, respond: Respond, *, queries: int = 1
) -> Evidence:
    """Applies a defence to every output of the target and of the shadow models.

    The result is the evidence of an adaptive attacker, whose shadow models are defended in the
    same way as the target. Signals are left out, since they were computed from undefended outputs.
    With several queries the attacker repeats each query and averages the log-probabilities of the
    answers; for Dirichlet answers that mean is a sufficient statistic.

    Args:
      key: PRNG key; each output has its own.
      evidence: evidence with logits.
      respond: `respond(key, logits) -> logits` of one record, such as `Defence.respond`.
      queries: number of answers to each query, with keys of their own.

    Returns:
      The evidence with defended logits; means of log-probabilities for several queries.

    Raises:
      ValueError: if the evidence has no logits, or queries is not a whole number >= 1.

    Example:
      >>> evidence = Evidence(logits=np.array([[2.0, 0.0], [0.0, 1.0]]))
      >>> label_only = lambda key, logits: jax.nn.one_hot(logits.argmax(), len(logits))
      >>> defended(jax.random.key(0), evidence, label_only).logits.tolist()
      [[1.0, 0.0], [0.0, 1.0]]
    """
    if evidence.logits is None:
        raise ValueError("Expected evidence with logits to pass through a defence, got none.")
    _check.positive_int(queries=queries)
    target_key, shadow_key, population_key = jax.random.split(key, 3)
    batched = jax.jit(jax.vmap(respond))

    def answer(key: PRNGKeyArray, logits: Any) -> np.ndarray:
        return np.asarray(batched(jax.random.split(key, len(logits)), logits))

    def answers(key: PRNGKeyArray, logits: Any) -> np.ndarray:
        logits = signals.shifted(logits)
        if queries == 1:
            return answer(key, logits)
        total = np.zeros(np.shape(logits), np.float32)
        for each in jax.random.split(key, queries):
            total += signals.log_probabilities(answer(each, logits))
        return total / np.float32(queries)

    shadows, population, predict = evidence.shadow_logits, evidence.population, evidence.predict
    if shadows is not None:
        keys = jax.random.split(shadow_key, len(shadows))
        shadows = np.stack([answers(k, model) for k, model in zip(keys, shadows, strict=True)])
    if population is not None:
        population = defended(population_key, population, respond, queries=queries)

    def defended_predict(key: PRNGKeyArray, inputs: np.ndarray) -> np.ndarray:
        assert predict is not None
        predict_key, respond_key = jax.random.split(key)
        return answers(respond_key, predict(predict_key, inputs))

    return dataclasses.replace(
        evidence,
        logits=answers(target_key, evidence.logits),
        shadow_logits=shadows,
        signals=None,
        shadow_signals=None,
        population=population,
        predict=None if predict is None else defended_predict,
    )


_ARRAYS = (
    "signals",
    "logits",
    "labels",
    "inputs",
    "unit_id",
    "revealed",
    "revealed_is_member",
    "shadow_signals",
    "shadow_logits",
    "shadow_is_member",
)
_STORED_AS = {"signals": "scores", "shadow_signals": "shadow_scores", "unit_id": "group"}
_POPULATION = ("signals", "logits", "labels", "inputs", "shadow_signals", "shadow_logits")
_FILE_NAMES = {
    "is_member": "is_member",
    **{_STORED_AS.get(name, name): name for name in _ARRAYS},
    **{f"population_{_STORED_AS.get(name, name)}": f"population_{name}" for name in _POPULATION},
}
"""Name in the file -> name in the evidence."""


def _stored(evidence: Evidence) -> dict[str, np.ndarray]:
    arrays = {_STORED_AS.get(name, name): getattr(evidence, name) for name in _ARRAYS}
    return {name: value for name, value in arrays.items() if value is not None}


def _check_names(names: list[str], path: Path) -> None:
    """Raises ValueError for misspelt names, and warns about arrays that are not used."""
    unknown = sorted(set(names) - set(_FILE_NAMES))
    for name in unknown:
        near = difflib.get_close_matches(name, sorted(set(_FILE_NAMES) - set(names)), 1, 0.75)
        if near:
            raise ValueError(f"Expected the array {near[0]!r} in {path.name}, got {name!r}.")
    if unknown:
        warnings.warn(f"{path.name}: unused arrays: {', '.join(unknown)}.", stacklevel=3)


def _warn_of_probabilities(evidence: Evidence, path: Path) -> None:
    """Warns if the rows of logits are probabilities, whose signals are weaker."""
    logits = evidence.logits
    if logits is not None and len(logits) and _check.are_probabilities(logits):
        warnings.warn(
            f"{path.name}: the rows of logits are probabilities; save their logarithms, or the "
            "attacks are weaker.",
            stacklevel=3,
        )


def _check_revealed(evidence: Evidence, is_member: Bool[np.ndarray, " n"]) -> None:
    """Raises ValueError if the revealed memberships are not the true ones."""
    if evidence.revealed is None or evidence.revealed_is_member is None:
        return
    wrong = evidence.revealed & (evidence.revealed_is_member != is_member)
    if wrong.any():
        raise ValueError(
            "Expected revealed_is_member to agree with is_member on the revealed records, "
            f"got {int(wrong.sum())} that differ."
        )


def _length(arrays: dict[str, Any]) -> int:
    for name, array in arrays.items():
        if array is not None:
            return array.shape[1] if name.startswith("shadow_") else len(array)
    raise ValueError("Expected evidence with at least one array, got none.")


def _checked(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns arrays in their own float types, labels as class indices, membership as bool."""
    for name in ("logits", "signals", "shadow_logits", "shadow_signals"):
        if name in arrays:
            arrays[name] = _check.real_array(_STORED_AS.get(name, name), arrays[name])
    for name in ("signals", "unit_id", "revealed", "revealed_is_member"):
        if name in arrays and arrays[name].ndim == 2 and arrays[name].shape[1] == 1:
            arrays[name] = arrays[name][:, 0]
    for name, shape in _SHAPES.items():
        if name in arrays and arrays[name].ndim != shape.count(",") + 1:
            _refuse_shape(name, arrays[name], shape)
    _check_sizes(arrays)
    for name in ("shadow_is_member", "revealed", "revealed_is_member"):
        if name in arrays:
            arrays[name] = _check.membership(arrays[name], name=name)
    if "revealed" in arrays and "revealed_is_member" in arrays:
        arrays["revealed_is_member"] = arrays["revealed_is_member"] & arrays["revealed"]
    if "unit_id" in arrays and arrays["unit_id"].dtype.kind not in "biuU":
        raise ValueError(f"Expected group as whole numbers or text, got {arrays['unit_id'].dtype}.")
    return arrays


def _check_sizes(arrays: dict[str, np.ndarray]) -> None:
    """Checks m, n and c of all arrays, and converts labels to class indices."""
    n = _length(arrays)
    c = next((arrays[k].shape[-1] for k in ("logits", "shadow_logits") if k in arrays), None)
    if c is not None and c < 2:
        raise ValueError(
            f"Expected logits [n, c] of at least two classes, got {c}; a single logit z of two "
            "classes is saved as the columns 0 and z."
        )
    if "labels" in arrays:
        arrays["labels"] = _check.labels(arrays["labels"], num_classes=c)
    shadows = [name for name in _ARRAYS if name.startswith("shadow_") and name in arrays]
    m = len(arrays[shadows[0]]) if shadows else 0
    if shadows and not m:
        _refuse_shape(shadows[0], arrays[shadows[0]], "[m, n] of at least one shadow model")
    for name, array in arrays.items():
        wanted = (m, n) if name in shadows else (n,)
        wanted += (c,) if name.endswith("logits") else ()
        given = array.shape[:1] if name == "inputs" else array.shape
        if given != wanted:
            shape = f"[{n}, ...]" if name == "inputs" else str(list(wanted))
            if shadows and name == shadows[0]:  # it sets m
                shape = f"[m, {', '.join(map(str, wanted[1:]))}]"
            _refuse_shape(name, array, shape)


_SHAPES = {
    "signals": "[n]",
    "logits": "[n, c]",
    "unit_id": "[n]",
    "revealed": "[n]",
    "revealed_is_member": "[n]",
    "shadow_signals": "[m, n]",
    "shadow_logits": "[m, n, c]",
    "shadow_is_member": "[m, n]",
}


def _refuse_shape(name: str, array: np.ndarray, wanted: str) -> None:
    stored = _STORED_AS.get(name, name)
    raise ValueError(f"Expected {stored} of shape {wanted}, got {list(array.shape)}.")


def _check_population(evidence: Evidence) -> None:
    population = evidence.population
    if population is None:
        return
    if population.shadow_is_member is not None or population.population is not None:
        raise ValueError("Expected a population that no model was trained on, got memberships.")
    widths = {e.logits.shape[1] for e in (evidence, population) if e.logits is not None}
    if len(widths) > 1:
        raise ValueError(f"Expected one number of classes, got {sorted(widths)}.")
    if evidence.num_shadows and population.num_shadows not in (0, evidence.num_shadows):
        raise ValueError(
            f"Expected a population under {evidence.num_shadows} shadow models, "
            f"got {population.num_shadows}."
        )
