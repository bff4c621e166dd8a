"""What a report covers of two public documents, row by row, for the file of a privacy officer.

The rows follow the layers of the differential privacy pyramid of NIST SP 800-226 (2025), and the
tests that EDPB Opinion 28/2024 names for models that are claimed to be anonymous. A row states
what was examined and draws no legal conclusion.
"""

from typing import NamedTuple

from jaxpriv.reports import _phrases
from jaxpriv.reports.findings import Entry, Report

NIST = "NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees, 2025"
EDPB = (
    "European Data Protection Board, Opinion 28/2024 on certain data protection aspects related to "
    "the processing of personal data in the context of AI models, 2024"
)


class Row(NamedTuple):
    """A topic of a document, the section of the page on it or None, and a sentence."""

    topic: str
    section: str | None
    text: str


def nist(report: Report) -> list[Row]:
    """Lists the layers of the differential privacy pyramid, from the top."""
    promises = [entry for entry in report.entries if entry.promise is not None]
    audits = [entry for entry in report.entries if entry.findings.audit is not None]
    return [
        Row(
            "Privacy parameters and unit of privacy",
            "Guarantee" if promises else None,
            _parameters_text(report, promises),
        ),
        Row(
            "Algorithm and correctness",
            "Guarantee and audit" if audits else None,
            "The audit can show that a guarantee is wrong, and cannot show that it is right."
            if audits
            else "No audit applies.",
        ),
        Row(
            "Utility and bias",
            "Utility" if any(entry.utility for entry in report.entries) else None,
            f"Accuracy on {_phrases.tested_on(report.unit)}. Differences between groups of people "
            "are not examined.",
        ),
        Row(
            "Security and side channels",
            None,
            "Floating-point noise, timing, access control and the secrecy of the key are not "
            "examined.",
        ),
        Row(
            "Trust model",
            None,
            "A trusted curator holds the records and trains the model; who that is, is not "
            "examined.",
        ),
        Row("Data collection", None, "How the records were collected is not examined."),
    ]


def edpb(report: Report) -> list[Row]:
    """Lists the attacks that the opinion names."""
    has_promise = any(
        entry.promise is not None and not entry.promise.vacuous for entry in report.entries
    )
    reconstruction = "No attack was run."
    if has_promise:
        reconstruction += " The guarantee limits it for every attacker, see Guarantee."
    return [
        Row("Membership inference", "Attacks", "Black-box attacks on the outputs of the model."),
        _attribute_row(report),
        Row("Exfiltration", None, "No attack was run."),
        Row("Regurgitation of training data", None, "The models are classifiers, not generators."),
        _inversion_row(report),
        Row("Reconstruction", None, reconstruction),
    ]


def _attribute_row(report: Report) -> Row:
    inferred = report.entries[0].attribute
    if inferred is None:
        return Row("Attribute inference", None, "No attack was run.")
    return Row(
        "Attribute inference",
        "Attribute inference",
        f"Inference of {inferred.column!r} from the outputs of the model, beside imputation.",
    )


def _inversion_row(report: Report) -> Row:
    if report.inversion is None:
        return Row("Model inversion", None, "No attack was run.")
    return Row(
        "Model inversion",
        "Model inversion",
        "White-box attacks on models of all classes, by gradients.",
    )


def _parameters_text(report: Report, promises: list[Entry]) -> str:
    if not promises:
        return "No guarantee was stated."
    text = f"Epsilon, delta, neighbouring relation and unit (one {report.unit})."
    if any(entry.promise is not None and entry.promise.is_claim for entry in promises):
        text += " They were claimed and not verified."
    return text
