"""`recorder sessions` and `recorder db`: sessions set aside, and the slots of sealing. Contract §9."""

from dataclasses import asdict
from typing import Annotated

import typer

from recorder.cli.options import AsJson, DataDir, print_json

sessions_app = typer.Typer(no_args_is_help=True, help="Sessions of a deployment, as its operator sees them.")
db_app = typer.Typer(no_args_is_help=True, help="The database of a deployment.")

_Workspace = Annotated[str | None, typer.Option(help="Name or id of one workspace. [default: all]")]


@sessions_app.command("quarantined")
def list_quarantined(workspace: _Workspace = None, data: DataDir = None, as_json: AsJson = False) -> None:
    """List the sessions that could not be sealed and were set aside, with the reason."""
    from recorder import clock
    from recorder.cli.deployment import opened, workspace_id_of
    from recorder.sealing.quarantine import list_set_aside

    with opened(data) as runtime, runtime.database.transaction(write=False) as db:
        workspace_id = None if workspace is None else workspace_id_of(db, workspace)
        found = list_set_aside(db, workspace_id)
    if as_json:
        print_json([{**asdict(one), "at": clock.to_iso(one.at)} for one in found])
        return
    for one in found:
        typer.echo(f"{one.session_id}  {one.workspace_id}  {one.mode}  {one.workflow}")
        typer.echo(f"  {clock.to_iso(one.at)}  {one.code}: {one.message}")
    if not found:
        typer.echo("No session is set aside.", err=True)


@sessions_app.command("reseal")
def reseal_sessions(
    session_ids: Annotated[list[str], typer.Argument(help="Ids as `quarantined` lists them.")],
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Let sessions that were set aside wait to be sealed again."""
    from recorder.cli.deployment import opened
    from recorder.sealing.quarantine import reseal

    with opened(data) as runtime, runtime.database.transaction(write=True) as db:
        for session_id in session_ids:
            reseal(db, session_id)
    if as_json:
        print_json({"resealed": session_ids})
        return
    typer.echo(f"{len(session_ids)} wait to be sealed again.", err=True)


@db_app.command("reslot")
def reslot(
    slots: Annotated[int, typer.Argument(min=1, max=1024, help="New number of slots.")],
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Divide the workflows of each workspace into another number of sealing slots; stop the service first."""
    from recorder.cli.deployment import opened
    from recorder.sealing.reslotting import change_slots

    with opened(data, is_reslotting=True) as runtime, runtime.database.transaction(write=True) as db:
        before = change_slots(db, slots)
    if as_json:
        print_json({"slots": slots, "before": before})
        return
    typer.echo(
        f"{slots} slots instead of {before}. Set RECORDER_SEAL_SLOTS to {slots} where it is set.", err=True
    )
