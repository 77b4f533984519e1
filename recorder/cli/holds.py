"""`recorder hold`: legal holds of sessions and tags. Contract §7, §9."""

from typing import Annotated, Literal

import typer

from recorder.cli.options import (
    AnyWorkspace,
    AsJson,
    DataDir,
    OneWorkspace,
    WrongOptions,
    find_any_workspace_id_option,
    find_workspace_id_option,
    open_command_database,
    print_aligned_table,
    print_json,
)
from recorder.number_formats import format_age

app = typer.Typer(no_args_is_help=True, help="Legal holds: protect sessions from deletion.")

_Session = Annotated[str | None, typer.Option(help="Id of one session.", show_default=False)]
_Tag = Annotated[
    str | None, typer.Option(help="Name of a tag: holds every session that carries it.", show_default=False)
]


@app.command("add")
def add_hold_command(
    session: _Session = None,
    tag: _Tag = None,
    workspace: OneWorkspace = None,
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Hold a session, or all sessions with a tag; a hold that exists stays as it is."""
    from recorder.audit.log import Origin
    from recorder.governance import holds

    kind, value = _choose_hold_target(session, tag)
    with open_command_database(data) as (_, database), database.transaction(write=True) as db:
        origin = Origin.operator(find_workspace_id_option(db, workspace))
        is_new = holds.add_hold(db, origin, kind=kind, value=value)
    if as_json:
        print_json({"workspace_id": origin.workspace_id, "kind": kind, "value": value, "is_new": is_new})
    typer.echo(f"The {kind} {value} is held{'' if is_new else ' already'}.", err=True)


@app.command("remove")
def remove_hold_command(
    session: _Session = None,
    tag: _Tag = None,
    workspace: OneWorkspace = None,
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """End a hold; the next retention run purges what is due."""
    from recorder.audit.log import Origin
    from recorder.governance import holds

    kind, value = _choose_hold_target(session, tag)
    with open_command_database(data) as (_, database), database.transaction(write=True) as db:
        origin = Origin.operator(find_workspace_id_option(db, workspace))
        holds.remove_hold(db, origin, kind=kind, value=value)
    if as_json:
        print_json({"workspace_id": origin.workspace_id, "kind": kind, "value": value})
    typer.echo(f"The {kind} {value} is no longer held.", err=True)


@app.command("list")
def list_holds_command(
    workspace: AnyWorkspace = None,
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the holds, the oldest first: workspace, kind, age, session or tag."""
    from recorder import clock
    from recorder.governance import holds

    with open_command_database(data) as (_, database), database.transaction(write=False) as db:
        workspace_id = find_any_workspace_id_option(db, workspace)
        rows = holds.list_holds(db, workspace_id)
    if as_json:
        print_json([{**vars(row), "created_at": clock.to_iso(row.created_at)} for row in rows])
        return
    if not rows:
        typer.echo("Nothing is held.", err=True)
    print_aligned_table(
        ("workspace", "kind", "age", "session or tag"),
        [
            (
                hold.workspace_id,
                hold.kind,
                format_age((clock.now() - hold.created_at).total_seconds()),
                hold.value,
            )
            for hold in rows
        ],
        right=("age",),
    )


def _choose_hold_target(session: str | None, tag: str | None) -> tuple[Literal["session", "tag"], str]:
    """Return kind and value of the hold that the options name.

    Raises:
        WrongOptions: unless exactly one of them is given.
    """
    if session is not None and tag is None:
        return "session", session
    if tag is not None and session is None:
        return "tag", tag
    raise WrongOptions(
        "Name --session or --tag." if session is None else "Name --session or --tag, not both."
    )
