"""Shows the progress of long computations, with the time left."""

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar with the time left if standard error is a terminal.

    Args:
      description: what is counted.
      total: number of parts.

    Yields:
      `advance(done)`, which shows the number of finished parts.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=total)
        yield lambda done: progress.update(task, completed=done)


def in_words(seconds: float) -> str:
    """Formats a time roughly: 40 -> '40 s', 130 -> '2 min', 5000 -> '1 h 23 min'."""
    if seconds < 90:
        return f"{round(seconds)} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
