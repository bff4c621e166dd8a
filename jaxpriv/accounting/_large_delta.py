"""The warning about a delta so large that it promises nothing."""

import warnings


class LargeDeltaWarning(UserWarning):
    """Issued if delta >= 1/n, where n is the number of records.

    A mechanism that publishes one record in full satisfies (0, 1/n)-DP.

    Example:
      >>> import warnings
      >>> import jaxpriv as jp
      >>> event = jp.sampling.poisson(1000, sampling_prob=0.01).event(noise_multiplier=1.0, steps=1)
      >>> with warnings.catch_warnings():
      ...     warnings.simplefilter("ignore", jp.accounting.LargeDeltaWarning)
      ...     epsilon = jp.accounting.epsilon(event, delta=0.01, relation="add_or_remove_one")
      >>> round(epsilon, 3)
      0.0
    """


def warn(delta: float, n: int, *, stacklevel: int = 3) -> None:
    """Warns if delta >= 1/n, by default at the caller of the function that calls this.

    Args:
      delta: delta of the (epsilon, delta) guarantee.
      n: number of records.
      stacklevel: see `warnings.warn`.
    """
    if delta >= 1 / n:
        warnings.warn(
            f"delta={delta} is at least 1/n for n={n}: a mechanism that publishes one record in "
            "full would satisfy it.",
            LargeDeltaWarning,
            stacklevel=stacklevel,
        )
