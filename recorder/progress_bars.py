"""Progress bars and waiting lines on stderr, for commands and the client; only on a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column

_BAR_WIDTH = 40


@contextmanager
def open_progress_bar(
    description: str,
    *figures: ProgressColumn,
    console: Console | None = None,
    is_wide: bool = False,
    is_transient: bool = False,
    is_wanted: bool = True,
    **task: Any,
) -> Iterator[Callable[..., None]]:
    """Show a bar on stderr, if that is a terminal; yield the function that changes its task.

    The function takes the arguments of `rich.progress.Progress.update`.

    Args:
        description: text before the bar.
        figures: columns after the bar.
        console: console of stderr; None opens one.
        is_wide: whether the bar takes the width that the columns leave.
        is_transient: whether the bar disappears at the end.
        is_wanted: whether there is a bar at all.
        task: further arguments of `rich.progress.Progress.add_task`, such as `total`.
    """
    console = console or Console(stderr=True)
    bar = BarColumn(bar_width=None if is_wide else _BAR_WIDTH)
    with Progress(
        TextColumn("{task.description}"),
        bar,
        *figures,
        console=console,
        expand=is_wide,
        transient=is_transient,
        disable=not (is_wanted and console.is_terminal),
    ) as progress:
        yield partial(progress.update, progress.add_task(description, **task))


@contextmanager
def open_waiting_line(console: Console | None = None) -> Iterator[Callable[[str | None], None]]:
    """Yield the function that shows on stderr what a command waits for, with the seconds since the start.

    None removes the line, which the end of the block does too.

    Args:
        console: console of stderr; None opens one. Without a terminal nothing is shown.
    """
    console = console or Console(stderr=True)
    text = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    progress = Progress(
        SpinnerColumn(),
        TimeElapsedColumn(),
        text,
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not console.is_terminal,
    )
    task = progress.add_task("")

    def show(description: str | None) -> None:
        if description is None:
            progress.stop()
        else:
            progress.update(task, description=escape(description))
            progress.start()

    try:
        yield show
    finally:
        progress.stop()
