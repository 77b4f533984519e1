"""`recorder drift`: backtests of the drift rules, and stored alarms. Contract §9."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from recorder.cli.options import (
    AnyMode,
    AnyWorkspace,
    AsJson,
    DataDir,
    OneMode,
    OneWorkspace,
    find_any_workspace_id_option,
    find_workspace_id_option,
    open_deployment_for_command,
    print_json,
)
from recorder.number_formats import format_count
from recorder.tenant import Tenant

if TYPE_CHECKING:
    from recorder.memory.drift.backtest import Backtest
    from recorder.memory.drift.thresholds import DriftRules
    from recorder.runtime import Runtime
    from recorder.tenant import GraphScope

app = typer.Typer(
    no_args_is_help=True, help="Paths, nodes and edges of memory graphs that stop, drop, appear or grow."
)

_LEAST_BASELINE = 20


@app.command("backtest")
def backtest(
    workflow: Annotated[str, typer.Argument(help="The workflow whose history is replayed.")],
    workspace: OneWorkspace = None,
    mode: OneMode = "live",
    baseline: Annotated[
        int, typer.Option(min=_LEAST_BASELINE, help="Sessions of a baseline; 500 are what the service takes.")
    ] = 500,
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the alarms that the stored sessions would have raised; send nothing."""
    from recorder.memory.drift.thresholds import DriftRules
    from recorder.tenant import GraphScope

    rules = DriftRules(baseline=baseline, least_baseline=min(baseline, DriftRules().least_baseline))
    with open_deployment_for_command(data) as runtime:
        with runtime.database.transaction(write=False) as db:
            scope = GraphScope(Tenant(find_workspace_id_option(db, workspace), mode), workflow)
        result = _backtest_drift_for_command(runtime, scope, rules)
    if as_json:
        print_json(_backtest_to_json(workflow, baseline, result))
    else:
        _print_backtest(workflow, result, rules)


@app.command("list")
def list_alarms(
    workspace: AnyWorkspace = None,
    workflow: Annotated[str | None, typer.Option(help="One workflow. \\[default: all]")] = None,
    mode: AnyMode = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the alarms that were sent, the newest first."""
    from recorder import clock
    from recorder.memory.drift.store import list_alarms as stored_alarms

    with open_deployment_for_command(data) as runtime, runtime.database.transaction(write=False) as db:
        workspace_id = find_any_workspace_id_option(db, workspace)
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
        typer.echo("No alarm was sent.", err=True)
        return
    _print_alarm_table(
        ("given", "workspace", "mode", "workflow", "event", "about", "why"),
        [
            (
                clock.to_iso(row.created_at),
                row.workspace_id,
                row.mode,
                row.workflow,
                row.type,
                _format_alarm_subject_cell(row.data),
                row.data["window"]["explanation"],
            )
            for row in rows
        ],
    )


def _backtest_drift_for_command(runtime: "Runtime", scope: "GraphScope", rules: Any) -> "Backtest":
    """Replay the history with a progress bar on the terminal."""
    from rich.progress import TaskProgressColumn, TimeRemainingColumn

    from recorder.memory.drift.backtest import backtest_history
    from recorder.progress_bars import open_progress_bar

    figures = (TaskProgressColumn(), TimeRemainingColumn())
    with open_progress_bar(f"Replaying {scope.workflow}", *figures, is_transient=True, total=None) as update:
        return backtest_history(
            runtime.database,
            scope,
            rules,
            progress=lambda done, sessions: update(completed=done, total=sessions),
        )


def _backtest_to_json(workflow: str, baseline: int, result: "Backtest") -> dict[str, Any]:
    from recorder import clock

    return {
        "workflow": workflow,
        "baseline": baseline,
        "sessions": result.sessions,
        "judged": result.judged,
        "terms": result.terms,
        "alarms_per_2000": result.rates,
        "alarms": [
            {
                "place": alarm.position,
                "began_at": clock.to_iso(alarm.began_at),
                "type": alarm.type,
                "data": alarm.data,
            }
            for alarm in result.alarms
        ],
    }


def _print_backtest(workflow: str, result: "Backtest", rules: "DriftRules") -> None:
    from recorder import clock

    if result.alarms:
        _print_alarm_table(
            ("session", "began", "event", "about", "why"),
            [
                (
                    f"{alarm.position:,}",
                    clock.to_iso(alarm.began_at),
                    alarm.type,
                    _format_alarm_subject_cell(alarm.data),
                    alarm.data["window"]["explanation"],
                )
                for alarm in result.alarms
            ],
        )
    if not result.judged:
        typer.echo(_explain_missing_baseline(workflow, result.sessions, rules), err=True)
        return
    rates = ", ".join(f"{rate:.2f} {type}" for type, rate in result.rates.items())
    typer.echo(
        f"{result.judged:,} of {format_count(result.sessions, 'session')} of {workflow} judged, against "
        f"{format_count(result.terms, 'baseline')}. Per 2,000 sessions: {rates}.",
        err=True,
    )


def _explain_missing_baseline(workflow: str, sessions: int, rules: "DriftRules") -> str:
    """Return the sentences that say how many sessions a backtest needs, and what to do."""
    needed = min(rules.least_baseline, rules.baseline) + 1
    smaller = f", or give a --baseline from {_LEAST_BASELINE} to {sessions - 1}"
    return (
        f"{workflow} has {format_count(sessions, 'session')}: too few for a baseline. A backtest needs at "
        f"least {needed}. Record more{smaller if sessions > _LEAST_BASELINE else ''}."
    )


def _format_alarm_subject_cell(data: dict[str, Any]) -> str:
    """Return kind of the change, id of its subject, and labels of the node or path of an alarm."""
    window = data["window"]
    labels = data["node"]["label"] if "node" in data else " → ".join(data["path"]["labels"])
    if "subject" not in window:  # sent by an earlier release
        return f"{data['node']['node_id'] if 'node' in data else data['path']['path_id']}\n{labels}"
    ((kind, value),) = window["subject"].items()
    subject_id = " → ".join(value) if kind == "edge" else value
    return f"{window['kind']} {kind.removesuffix('_id')}\n{subject_id}\n{labels}"


def _print_alarm_table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    import sys

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, show_lines=True)
    for row in rows:
        # Text: what people recorded must not be read as markup.
        table.add_row(*(Text(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
