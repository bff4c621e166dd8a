"""Subjects of a report: trained models, or the outputs of a model in a file.

In the shapes below `n` counts records.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, PRNGKeyArray

from jaxpriv import units
from jaxpriv.attacks import evidence as evidence_lib
from jaxpriv.attacks import inversion
from jaxpriv.attacks.evidence import Evidence
from jaxpriv.defences import Release
from jaxpriv.reports.findings import Data, Promise, Training
from jaxpriv.sensitivity import SampledPairs

__all__ = ["Outputs", "Subject", "describe_scores", "from_scores"]


class Subject(NamedTuple):
    """A model that a report examines.

    name: name of the model on the page.
    evidence: outputs and records that its attackers have.
    is_member: whether the model was trained on each record.
    training, promise: training and guarantee; None if unknown.
    rows: number of each record in the user's data; None if the records are all of the data.
    tested: outputs of a model trained in the same way on a part of the records of every class, and
      whether each record is in that part. Where a class is the unit, it measures the accuracy;
      None otherwise.
    release: `release(key, hook) -> (evidence, tested)`, outputs of the models whose parameters,
      also those of the shadow models, went through the hook of a defence; None without parameters.
    sample_pairs: `sample_pairs(key, num_pairs)`, distances of the parameters on pairs of
      neighbouring data sets that the target was not trained on; None without a training.
    predict_one: that model as a JAX function of one input, for attacks that need its gradients.
    defence: title of a defence in the training; None without one.
    """

    name: str
    evidence: Evidence
    is_member: Bool[np.ndarray, " n"]
    training: Training | None
    promise: Promise | None
    rows: Int[np.ndarray, " n"] | None = None
    tested: tuple[Evidence, Bool[np.ndarray, " n"]] | None = None
    release: Callable[[PRNGKeyArray, Release], "Outputs"] | None = None
    sample_pairs: Callable[[PRNGKeyArray, int], SampledPairs] | None = None
    predict_one: inversion.Predict | None = None
    defence: str | None = None


Outputs = tuple[Evidence, tuple[Evidence, Bool[np.ndarray, " n"]] | None]
"""Evidence, and the outputs that measure the accuracy, as in `Subject`."""


def from_scores(path: str | os.PathLike[str]) -> Subject:
    """Reads the outputs of a model from a file.

    Args:
      path: a SCORES.npz with `is_member`.

    Returns:
      The subject, without training and promise.

    Raises:
      ValueError: if the file is damaged or lacks `is_member`.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     np.savez(f"{folder}/scores.npz", scores=[3.0, 1.0, 2.0], is_member=[1, 0, 0])
      ...     subject = from_scores(f"{folder}/scores.npz")
      >>> subject.name, subject.evidence.signals.tolist()
      ('Given model', [3.0, 1.0, 2.0])
    """
    evidence, is_member = evidence_lib.load(path)
    if is_member is None:
        raise ValueError(f"Expected the array 'is_member' in {Path(path).name}, got none.")
    return Subject("Given model", evidence, is_member, training=None, promise=None)


def describe_scores(path: str | os.PathLike[str], subject: Subject) -> Data:
    """Describes the records of a file of outputs and counts them.

    Args:
      path: the file.
      subject: result of `from_scores` for the file.

    Returns:
      Names and counts; None for counts that the file does not determine.

    Example:
      >>> evidence = Evidence(signals=np.array([3.0, 1.0, 2.0]))
      >>> subject = Subject("Given model", evidence, np.array([True, False, False]), None, None)
      >>> described = describe_scores("clinic.npz", subject)
      >>> described.name, described.num_members, described.num_nonmembers
      ('clinic', 1, 2)
    """
    evidence, is_member = subject.evidence, subject.is_member
    logits, population = evidence.logits, evidence.population
    groups = None if evidence.unit_id is None else units.groups(evidence.unit_id)
    return Data(
        name=Path(path).stem,
        source=f"outputs in {Path(path).name}",
        num_records=len(evidence) + (0 if population is None else len(population)),
        num_classes=None if logits is None else logits.shape[1],
        class_names=None,
        notes=(),
        not_private=(),
        num_members=int(is_member.sum()),
        num_nonmembers=int((~is_member).sum()),
        num_population=0 if population is None else len(population),
        num_groups=None if groups is None else groups.num_units,
        largest_group=None if groups is None else groups.largest,
        num_duplicates=None,
        by_coin=False,
    )
