"""`recorder keys`: the keys of a deployment's workspaces, on its data folder. Contract §9."""

from typing import Annotated, Literal

import typer

from recorder.cli.options import AsJson, DataDir, print_json
from recorder.tenant import Tenant

app = typer.Typer(no_args_is_help=True, help="Keys of a deployment.")

_Workspace = Annotated[str, typer.Argument(help="Name or id of a workspace.")]


@app.command("create")
def create_key(
    workspace: _Workspace,
    label: Annotated[str, typer.Argument(help="What the key is for.")],
    scope: Annotated[str, typer.Option(help="read, write or admin; replay:live may follow.")] = "write",
    mode: Annotated[Literal["live", "test"], typer.Option(help="Which data it sees.")] = "live",
    expires_at: Annotated[str | None, typer.Option(help="End of its validity: ISO 8601 with a zone.")] = None,
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a key; it is shown this once."""
    from pydantic import ValidationError

    from recorder.access.key_admin import issue_key
    from recorder.access.workspaces import find_workspace
    from recorder.audit.log import Origin
    from recorder.cli.options import opened, print_folder
    from recorder.models.key import KeyCreate

    given = {"label": label, "scope": scope, "mode": mode, "expires_at": expires_at}
    try:
        wanted = KeyCreate.model_validate(given)
    except ValidationError as error:
        told = [f"{found['loc'][0]}: {found['msg']}" for found in error.errors()]
        raise typer.BadParameter("; ".join(told)) from error
    with opened(data) as runtime:
        print_folder(runtime)
        with runtime.database.transaction(write=True) as db:
            origin = Origin.operator(find_workspace(db, workspace).id)
            made = issue_key(db, origin, wanted, runtime.settings.secret)
    if as_json:
        print_json(made.model_dump(mode="json"))
        return
    typer.echo(made.key)
    typer.echo(f"Key {made.id}, scope {made.scope}. Keep it: it is not shown again.", err=True)


@app.command("list")
def list_keys(workspace: _Workspace, data: DataDir = None, as_json: AsJson = False) -> None:
    """The keys of a workspace that were not revoked, newest first: id, scope, mode, last letters, label."""
    from recorder.access import key_admin
    from recorder.access.workspaces import find_workspace
    from recorder.cli.options import opened, print_folder

    with opened(data) as runtime:
        print_folder(runtime)
        with runtime.database.transaction(write=False) as db:
            keys, _ = key_admin.list_keys(db, Tenant(find_workspace(db, workspace).id, "live"))
    if as_json:
        print_json([key.model_dump(mode="json") for key in keys])
        return
    for key in keys:
        typer.echo(f"{key.id}  {key.scope}  {key.mode}  …{key.last4}  {key.label}")


@app.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="Id of a key, as `list` shows it.")], data: DataDir = None
) -> None:
    """End a key; running processes refuse it within 5 seconds."""
    from recorder.access import key_admin
    from recorder.audit.log import Origin
    from recorder.cli.options import opened, print_folder

    with opened(data) as runtime:
        print_folder(runtime)
        with runtime.database.transaction(write=True) as db:
            workspace_id = key_admin.find_key(db, key_id).workspace_id
            key_admin.revoke_key(db, Tenant(workspace_id, "live"), Origin.operator(workspace_id), key_id)
    typer.echo(f"Key {key_id} is revoked.", err=True)
