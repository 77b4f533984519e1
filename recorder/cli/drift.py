"""`recorder drift`: a workflow's past through the rules, and the alarms that were given. Contract §9."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from recorder.cli.options import AsJson, DataDir, opened, print_json, workspace_id_of
from recorder.tenant import Tenant

if TYPE_CHECKING:
    from recorder.memory.drift.backtest import Backtest
    from recorder.memory.grouping.nodes import GraphScope
    from recorder.runtime import Runtime

app = typer.Typer(no_args_is_help=True, help="Paths that stop and nodes that appear in memory graphs.")

_Workspace = Annotated[
    str | None, typer.Option(help="Name or id of a workspace. [default: the only one]", show_default=False)
]
_Mode = Annotated[Literal["live", "test"], typer.Option(help="Which of its data.")]
_LEAST_BASELINE = 20


@app.command("backtest")
def backtest(
    workflow: Annotated[str, typer.Argument(help="The workflow whose history is replayed.")],
    workspace: _Workspace = None,
    mode: _Mode = "live",
    baseline: Annotated[
        int, typer.Option(min=_LEAST_BASELINE, help="Sessions of a baseline; 500 are what the service takes.")
    ] = 500,
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Replay the stored history of a workflow: what drift would have told, and when. Nobody is told."""
    from recorder.memory.drift.thresholds import Rules
    from recorder.memory.grouping.nodes import GraphScope

    rules = Rules(baseline=baseline, least_baseline=min(baseline, Rules().least_baseline))
    with opened(data) as runtime:
        with runtime.database.transaction(write=False) as db:
            scope = GraphScope(Tenant(workspace_id_of(db, workspace), mode), workflow)
        found = _replay(runtime, scope, rules)
    if as_json:
        print_json(_as_json(workflow, baseline, found))
    else:
        _print_backtest(workflow, found)


@app.command("list")
def list_alarms(
    workspace: Annotated[str | None, typer.Option(help="Name or id of one workspace. [default: all]")] = None,
    workflow: Annotated[str | None, typer.Option(help="One workflow. [default: all]")] = None,
    mode: Annotated[Literal["live", "test"] | None, typer.Option(help="One mode. [default: both]")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """The alarms that were given, the newest first."""
    from recorder import clock
    from recorder.memory.drift.store import list_alarms as stored_alarms

    with opened(data) as runtime, runtime.database.transaction(write=False) as db:
        workspace_id = None if workspace is None else workspace_id_of(db, workspace)
        rows = stored_alarms(db, workspace_id=workspace_id, mode=mode, workflow=workflow, limit=limit)
    if as_json:
        print_json(
            [
                {
                    "workspace_id": row.workspace_id,
                    "mode": row.mode,
                    "event_id": row.event_id,
                    "type": row.type,
                    "created_at": clock.to_iso(row.created_at),
                    "data": row.data,
                }
                for row in rows
            ]
        )
        return
    if not rows:
        typer.echo("No alarm was given.", err=True)
        return
    _print_table(
        ("given", "workspace", "mode", "workflow", "event", "about", "why"),
        [
            (
                clock.to_iso(row.created_at),
                row.workspace_id,
                row.mode,
                row.workflow,
                row.type,
                _about(row.data),
                row.data["window"]["explanation"],
            )
            for row in rows
        ],
    )


def _replay(runtime: "Runtime", scope: "GraphScope", rules: Any) -> "Backtest":
    """The replay, with a bar on the terminal while it lasts."""
    from rich.console import Console
    from rich.progress import Progress

    from recorder.memory.drift.backtest import replay_history

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"Replaying {scope.workflow}", total=None)
        return replay_history(
            runtime.database,
            scope,
            rules,
            progress=lambda done, sessions: bar.update(task, completed=done, total=sessions),
        )


def _as_json(workflow: str, baseline: int, found: "Backtest") -> dict[str, Any]:
    from recorder import clock

    return {
        "workflow": workflow,
        "baseline": baseline,
        "sessions": found.sessions,
        "judged": found.judged,
        "terms": found.terms,
        "alarms_per_2000": found.rates,
        "alarms": [{**asdict(alarm), "began_at": clock.to_iso(alarm.began_at)} for alarm in found.alarms],
    }


def _print_backtest(workflow: str, found: "Backtest") -> None:
    from recorder import clock

    if found.alarms:
        _print_table(
            ("session", "began", "event", "about", "why"),
            [
                (
                    f"{alarm.place:,}",
                    clock.to_iso(alarm.began_at),
                    alarm.type,
                    _about(alarm.data),
                    alarm.data["window"]["explanation"],
                )
                for alarm in found.alarms
            ],
        )
    if not found.judged:
        typer.echo(f"{workflow} has {found.sessions:,} sessions: too few for a baseline.", err=True)
        return
    rates = ", ".join(f"{rate:.2f} {type}" for type, rate in found.rates.items())
    typer.echo(
        f"{found.judged:,} of {found.sessions:,} sessions of {workflow} judged, against {found.terms} "
        f"baselines. Per 2,000 sessions: {rates}.",
        err=True,
    )


def _about(data: dict[str, Any]) -> str:
    """Id and words of what an alarm is about."""
    if "node" in data:
        return f"{data['node']['node_id']}\n{data['node']['label']}"
    return f"{data['path']['path_id']}\n{' → '.join(data['path']['labels'])}"


def _print_table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    import sys

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, show_lines=True)
    for row in rows:
        # Text: what people recorded must not be read as markup.
        table.add_row(*(Text(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
