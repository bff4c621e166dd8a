"""Quality of translations: BLEU, by sacrebleu (the extra `text`)."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxpriv import _check

__all__ = ["Bleu", "bleu"]


class Bleu(NamedTuple):
    """BLEU of a corpus.

    score: BLEU in percent, 0 to 100.
    signature: version and options of sacrebleu, with which the score can be computed again.
    """

    score: float
    signature: str


def bleu(translations: Sequence[str], references: Sequence[str]) -> Bleu:
    """Computes the BLEU of translations with one reference each.

    The geometric mean of the precisions of n-grams up to four words, over the whole corpus, times
    the penalty of short translations. Sentences are split into words by sacrebleu's "13a", and an
    n-gram order without a match counts as half a match or less (its smoothing "exp"). Translations
    that all have fewer than four words score 0.

    Args:
      translations: translations by the model.
      references: true translations.

    Returns:
      The score.

    Raises:
      ValueError: if lengths differ, there are no sentences, an argument is one text rather than a
        sequence of sentences, or sacrebleu is not installed.

    References:
      Papineni et al., BLEU: a Method for Automatic Evaluation of Machine Translation, 2002.
      Post, A Call for Clarity in Reporting BLEU Scores, 2018.

    Example:
      >>> round(bleu(["the cat sat on the mat"], ["the cat sat on a mat"]).score, 1)
      53.7
    """
    _check.sentences(translations=translations, references=references)
    _check.same_length(translations=translations, references=references)
    if not len(translations):
        raise ValueError("Expected at least one translation, got none.")
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise ValueError("Expected the package sacrebleu: pip install 'jaxpriv[text]'.") from None
    metric = BLEU(force=True)  # words may be separated from the full stop already
    score = metric.corpus_score(list(translations), [list(references)]).score
    return Bleu(min(float(score), 100.0), str(metric.get_signature()))
