"""Progress of an import on stderr: a bar, and the files that are skipped."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import MofNCompleteColumn, TextColumn, TimeRemainingColumn

from recorder.importers.upload import Upload
from recorder.progress_bars import open_progress_bar


@contextmanager
def show_import_progress(total: int, is_wanted: bool) -> Iterator[Callable[[Upload], None]]:
    """Show a bar on stderr; failures are named there with or without it."""
    console = Console(stderr=True)
    figures = (MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[failed]}"))
    with open_progress_bar(
        "Importing", *figures, console=console, is_wide=True, is_wanted=is_wanted, total=total, failed=""
    ) as update:
        failed = 0

        def on_done(upload: Upload) -> None:
            nonlocal failed
            if upload.session_id is None:
                failed += 1
                # File names are printed as they are: brackets in them are no markup.
                console.print(
                    f"skipped {upload.name}: {upload.reason}", markup=False, highlight=False, soft_wrap=True
                )
            update(advance=1, failed=f"{failed} skipped" if failed else "")

        yield on_done
