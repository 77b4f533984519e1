"""`recorder sessions` and `recorder import`: list, follow, reseal and import sessions. Contract §9."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recorder.cli.options import (
    DEFAULT_URL,
    AnyWorkspace,
    AsJson,
    DataDir,
    KeyOption,
    Url,
    Where,
    find_any_workspace_id_option,
    open_client_for_command,
    open_command_database,
    print_json,
    read_filter_options,
)
from recorder.number_formats import format_age, format_count

if TYPE_CHECKING:
    from recorder.client import Client
from pathlib import Path

app = typer.Typer(no_args_is_help=True, help="Sessions: list and follow them, seal again what was set aside.")

_Workflow = Annotated[
    list[str] | None, typer.Option(help="One workflow; repeat it for several.", show_default=False)
]
_POLL_S = 2.0
#: Sessions that were created so much earlier than the newest one may appear after it.
_OVERLAP = timedelta(seconds=10)
_LABEL_LENGTH = 50
_HEAD = f"{'session':<30}  {'status':<9}  {'outcome':<9}  {'age':>5}  workflow"


@app.command("list")
def list_sessions_command(
    key: KeyOption,
    url: Url = DEFAULT_URL,
    workflow: _Workflow = None,
    where: Where = None,
    limit: Annotated[int, typer.Option(min=1, help="List at most so many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List sessions, the newest first: id, status, outcome, age, workflow."""

    filters = read_filter_options(where, set_elsewhere={"workflow": "--workflow"})
    with open_client_for_command(url, key) as client:
        sessions = list(islice(client.list_sessions(workflow=workflow or None, **filters), limit))
    if as_json:
        print_json(sessions)
        return
    if not sessions:
        typer.echo("No session matches.", err=True)
        return
    typer.echo(_HEAD, err=True)
    for session in sessions:
        typer.echo(_format_session_line(session))


@app.command("tail")
def tail_sessions_command(
    key: KeyOption,
    session_id: Annotated[
        str | None, typer.Argument(help="A session whose events to follow. \\[default: follow new sessions]")
    ] = None,
    url: Url = DEFAULT_URL,
    workflow: _Workflow = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Print what the session holds already, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print new sessions, or the new events of one session, until Ctrl-C or until it is sealed."""

    if session_id is not None and workflow:
        raise typer.BadParameter("follows new sessions; leave out the session id", param_hint="--workflow")
    if session_id is None and from_start:
        raise typer.BadParameter("needs the id of a session", param_hint="--from-start")
    with open_client_for_command(url, key) as client, _end_tail_on_interrupt():
        if session_id is None:
            _print_new_sessions(client, workflow or None, as_json=as_json)
        else:
            _print_stream_messages(client, session_id, from_start=from_start, as_json=as_json)


@app.command("quarantined")
def list_quarantined_command(
    workspace: AnyWorkspace = None, data: DataDir = None, as_json: AsJson = False
) -> None:
    """List the sessions that could not be sealed and were set aside, with the reason."""
    from recorder import clock
    from recorder.sealing.set_aside import list_sessions_set_aside

    with open_command_database(data) as (_, database), database.transaction(write=False) as db:
        workspace_id = find_any_workspace_id_option(db, workspace)
        quarantined = list_sessions_set_aside(db, workspace_id)
    if as_json:
        print_json(
            [
                {
                    "session_id": session.session_id,
                    **asdict(session.tenant),
                    "workflow": session.workflow,
                    "code": session.code,
                    "message": session.message,
                    "at": clock.to_iso(session.at),
                }
                for session in quarantined
            ]
        )
        return
    for session in quarantined:
        typer.echo(
            f"{session.session_id}  {session.tenant.workspace_id}  {session.tenant.mode}  {session.workflow}"
        )
        typer.echo(f"  {clock.to_iso(session.at)}  {session.code}: {session.message}")
    if not quarantined:
        typer.echo("No session is set aside.", err=True)


@app.command("reseal")
def reseal_sessions_command(
    session_ids: Annotated[
        list[str] | None, typer.Argument(help="Ids as `quarantined` lists them.", show_default=False)
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every session that was set aside.")] = False,
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Queue sessions that were set aside for sealing again."""
    from recorder.sealing.set_aside import list_sessions_set_aside, reseal

    if bool(session_ids) == is_all:
        raise typer.BadParameter("takes ids of sessions, or --all", param_hint="ID")
    with open_command_database(data) as (_, database), database.transaction(write=True) as db:
        session_ids = session_ids or [session.session_id for session in list_sessions_set_aside(db)]
        for session_id in session_ids:
            reseal(db, session_id)
    if as_json:
        print_json({"resealed": session_ids})
        return
    message = (
        f"Waiting to be sealed again: {len(session_ids)}." if session_ids else "No session is set aside."
    )
    typer.echo(message, err=True)


@contextmanager
def _end_tail_on_interrupt() -> Iterator[None]:
    """End the block without an error on Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        return


def _print_new_sessions(client: "Client", workflow: list[str] | None, *, as_json: bool) -> None:
    """Print each session that is created from now on."""
    from recorder import clock

    def list_since(newest: datetime | None) -> dict[str, dict[str, Any]]:
        since = "10s" if newest is None else clock.to_iso(newest - _OVERLAP)
        return {session["id"]: session for session in client.list_sessions(workflow=workflow, since=since)}

    def find_newest(sessions: dict[str, dict[str, Any]]) -> datetime | None:
        times = (clock.parse_time(session["created_at"], name="created_at") for session in sessions.values())
        return max(times, default=None)

    newest = find_newest(list_since(None))
    # Later lists begin before the newest session; the sessions that are there already are not new.
    known = list_since(newest)
    typer.echo("Waiting for new sessions; Ctrl-C ends it.", err=True)
    while True:
        newest = find_newest(known) or newest
        time.sleep(_POLL_S)
        sessions = list_since(newest)
        for session_id in reversed(sessions):
            if session_id not in known:
                session = sessions[session_id]
                print_json(session) if as_json else typer.echo(_format_session_line(session))
        known = sessions  # the overlap bounds its size


def _print_stream_messages(client: "Client", session_id: str, *, from_start: bool, as_json: bool) -> None:
    """Print the messages of a session's stream until it is sealed."""
    status = client.get_session(session_id)["status"]
    if status != "sealed":
        typer.echo(f"{session_id} is {status}; following it until it is sealed or Ctrl-C.", err=True)
    for message in client.stream(session_id, from_start=from_start):
        print_json(message) if as_json else typer.echo(_format_tail_message_line(message))
    typer.echo(f"{session_id} is sealed: nothing more will come.", err=True)


def _format_session_line(session: dict[str, Any]) -> str:
    """Return a session as one line; workflow names come last, since they may be long."""
    from recorder import clock

    outcome = session["outcome"] or "-"
    created_at = clock.parse_time(session["created_at"], name="created_at")
    age = format_age((clock.now() - created_at).total_seconds())
    return f"{session['id']}  {session['status']:<9}  {outcome:<9}  {age:>5}  {session['workflow']}"


def _format_tail_message_line(message: dict[str, Any]) -> str:
    """Return a stream's message as one line."""
    # People and pages wrote these words: nothing in them may steer the terminal.
    from recorder.memory.views.label_lines import one_line

    kind, data = message["event"], message["data"]
    at = f"{data['t_ms'] / 1000:9.3f} s" if "t_ms" in data else " " * 11
    if kind == "session.event":
        target = data.get("target") or {}
        about = target.get("name") or target.get("text") or data.get("title") or data.get("url")
        words = one_line(about, _LABEL_LENGTH) if about else ""
        return f"{at}  {one_line(data['type'], 24):<12}  {words}".rstrip()
    if kind == "session.frame":
        return f"{at}  {'frame':<12}  {data['id']}"
    if kind == "session.tag":
        return f"{at}  {'tag':<12}  {one_line(data['name'], _LABEL_LENGTH)}"
    if kind == "session.status":
        return f"{at}  {'status':<12}  {data['status']}"
    return f"{at}  {one_line(kind, _LABEL_LENGTH)}"


def import_(
    path: Annotated[
        Path,
        typer.Argument(exists=True, help="Folder of task folders, one of them, one file, or an event log."),
    ],
    key: KeyOption,
    url: Url = DEFAULT_URL,
    workflow: Annotated[
        str | None, typer.Option(help="One workflow for all; the task goes into metadata.")
    ] = None,
    workflow_prefix: Annotated[
        str, typer.Option(help="Put before the slug of each task, or before the log's name.")
    ] = "",
    activity: Annotated[
        str, typer.Option(help="Attribute of a log that names the activity; several with + between.")
    ] = "concept:name",
    success: Annotated[
        list[str], typer.Option(help="Traces that ended well: attribute=value, of trace or event.")
    ] = [],  # noqa: B006
    error: Annotated[list[str], typer.Option(help="Traces that ended badly: attribute=value.")] = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Import recordings made elsewhere, each as one session: MiniWoB++ demonstrations, XES event logs."""
    from recorder.importers.miniwob.demonstration import import_demonstration_folder
    from recorder.importers.trace_recordings import import_xes_log, is_log, parse_outcome_rules

    try:
        rules = parse_outcome_rules(success, error)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong), param_hint="--success, --error") from wrong
    # Without a service the client would repeat its first request for half a minute.
    with open_client_for_command(url, key):
        pass
    try:
        if is_log(path):
            report = import_xes_log(
                path,
                url=url,
                key=key,
                workflow=workflow,
                workflow_prefix=workflow_prefix,
                activity=activity.split("+"),
                rules=rules,
            )
        else:
            report = import_demonstration_folder(
                path, url=url, key=key, workflow=workflow, workflow_prefix=workflow_prefix
            )
    except KeyboardInterrupt as stop:
        # The notes of other errors are printed with them.
        for note in getattr(stop, "__notes__", ()):
            typer.echo(note, err=True)
        raise
    summary = {
        "sessions": report.sessions,
        "events": report.events,
        "frames": report.frames,
        "failed": [{"file": name, "reason": reason} for name, reason in report.failed],
        "seconds": report.seconds,
    }
    if as_json:
        print_json(summary)
    records = f"{format_count(report.events, 'event')}, {format_count(report.frames, 'frame')}"
    brought = f"{format_count(report.sessions, 'session')}, {records}"
    typer.echo(f"{brought} in {report.seconds:.1f} s; {len(report.failed)} skipped.", err=True)
    raise typer.Exit(1 if report.failed else 0)
