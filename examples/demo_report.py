"""Output of `make demo`: a failed run, the common paths, the dataset in polars."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text
from sqlmodel import func, select

from recorder import Client
from recorder.access.keys import NewKey
from recorder.memory.views.path_texts import describe_path
from recorder.models.session import SessionRow
from recorder.models.wire import Mode
from recorder.models.workflow import WorkflowRow
from recorder.number_formats import format_count
from recorder.runtime import Runtime
from recorder.shell_commands import shorten_path

_MODE: Mode = "live"
_PATHS_OF_FEW = 8
_LABELS_SHOWN = 6
_TABLE_CHARACTERS = 80
#: The longest name of a workflow; a longer cell than its column takes two lines.
_NAME_CHARACTERS = 64


def show_failed_run(console: Console, client: Client) -> None:
    """Read one failed run and print its end; events are readable before anything is sealed."""
    failed = next(iter(client.list_sessions(outcome="error")), None)
    if failed is None:
        return
    events = list(client.list_events(failed["id"]))
    last = next((event for event in reversed(events) if event.get("title")), {"title": "the end"})
    count = f"{format_count(len(events), 'event')}, {failed['duration_ms'] / 1000:.0f} s"
    summary = f"a failed {failed['workflow']}: {count}, ends at “{last['title']}”"
    line = Text.assemble("  ", ("✓", "green"), f" read back  {summary}")
    console.print(line, highlight=False, soft_wrap=True)


def list_workflow_names(runtime: Runtime, key: NewKey) -> list[str]:
    """Return the workflows of the workspace."""
    with runtime.database.transaction(write=False) as db:
        statement = select(WorkflowRow.workflow).where(WorkflowRow.workspace_id == key.workspace_id)
        return sorted(db.exec(statement))


def count_sealed(runtime: Runtime, key: NewKey) -> int:
    """Return how many of the workspace's sessions are sealed."""
    with runtime.database.transaction(write=False) as db:
        statement = select(func.count()).where(
            SessionRow.workspace_id == key.workspace_id, SessionRow.status == "sealed"
        )
        return db.exec(statement).one()


@contextmanager
def sealing_bar(console: Console, expected: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar of the sealing; yields the function that sets it."""
    columns = (TextColumn("  sealing   "), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=expected)

        def advance(sealed: int) -> None:
            progress.update(bar, completed=sealed)

        yield advance


def show_paths(console: Console, client: Client, workflows: list[str]) -> None:
    """Print the common paths: several of each workflow if there are few, else the most common one of each.

    The steps of a path are below its figures: of the most common path the first and the last ones, of others
    the differences from it.
    """
    limit = _PATHS_OF_FEW if len(workflows) <= 2 else 1
    paths_by_workflow = {workflow: client.memory_paths(workflow, limit=limit) for workflow in workflows}
    heading = Text("Common paths", "bold")
    if any(len(paths) > 1 for paths in paths_by_workflow.values()):
        heading.append("   − and +: steps left out and added, against the first path", "not bold dim")
    console.print(heading)
    for workflow, paths in paths_by_workflow.items():
        for path in paths:
            print_path(console, workflow, path, common=paths[0])
    console.print()


def print_path(console: Console, workflow: str, path: dict[str, Any], *, common: dict[str, Any]) -> None:
    """Print the figures of a path on one line, and its steps below."""
    share, success = f"{path['frequency']:.0%}", f"{path['outcomes']['success']:.0%}"
    figures = (
        f"{share} of {workflow}, {format_count(path['session_count'], 'session')}, {success} successful, "
        f"median {path['median_duration_ms'] / 1000:.1f} s"
    )
    console.print(Padding(Text(figures), (0, 0, 0, 2), expand=False))
    for line in _describe_steps(path, common):
        console.print(Padding(Text(line, "dim"), (0, 0, 0, 6), expand=False))


def show_dataset(console: Console, folder: Path) -> int:
    """Load the events of a dataset, print a table and the path, and return the number of events."""
    pattern = folder / "data" / "*" / "events-*.parquet"
    events = pl.scan_parquet(pattern)
    by_workflow = events.group_by("workflow").agg(
        sessions=pl.col("session_id").n_unique(),
        events=pl.len(),
        longest_s=(pl.col("t_ms").max() / 1000).round(1),
    )
    with pl.Config(tbl_width_chars=min(console.width, _TABLE_CHARACTERS), fmt_str_lengths=_NAME_CHARACTERS):
        console.print(by_workflow.sort("workflow").head(8).collect())
    console.print(f"  Dataset    {shorten_path(folder)}", highlight=False, markup=False, soft_wrap=True)
    # To paste, so it is whole and on a line of its own.
    for line in ("  Load it with", f'      pl.scan_parquet("{shorten_path(pattern)}")'):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return int(events.select(pl.len()).collect().item())


def _describe_steps(path: dict[str, Any], common: dict[str, Any]) -> list[str]:
    """Return the steps of the most common path in one line, of another path a line for each difference."""
    if path["path_id"] == common["path_id"]:
        return [_shorten(path["labels"])]
    names = dict(zip(common["node_ids"], common["labels"], strict=True))
    names |= zip(path["node_ids"], path["labels"], strict=True)
    return describe_path(common["node_ids"], path["node_ids"], names)


def _shorten(labels: list[str]) -> str:
    if not labels:
        return "(no steps)"
    if len(labels) > _LABELS_SHOWN:
        labels = [*labels[: _LABELS_SHOWN - 2], "…", labels[-1]]
    return " › ".join(labels)
