"""`recorder workspaces` and `recorder keys`: tenants of a deployment and their keys. Contract §9."""

from typing import Annotated, Any, Literal

import typer

from recorder import limits
from recorder.cli.options import (
    AsJson,
    DataDir,
    WrongOptions,
    open_command_database,
    open_deployment_for_command,
    print_aligned_table,
    print_data_folder,
    print_json,
)
from recorder.tenant import Tenant

app = typer.Typer(no_args_is_help=True, help="Workspaces of a deployment.")


def _check_tier_option(name: str | None) -> str | None:
    from recorder.access.rate_tiers import TIERS

    if name is not None and name not in TIERS:
        raise typer.BadParameter(f"takes one of {', '.join(TIERS)}")
    return name


_TIER = typer.Option(help="Its table of limits.", callback=_check_tier_option)
_Name = Annotated[str, typer.Argument(help="Name or id of a workspace.")]


@app.command("create")
def create_workspace_command(
    name: Annotated[str, typer.Argument(help="Name of the new workspace.")],
    tier: Annotated[str, _TIER] = "default",
    init: Annotated[
        bool, typer.Option("--init", help="Create the deployment too, where the data folder holds none.")
    ] = False,
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create a workspace and its first key; the key is shown only once."""
    from recorder.access import workspaces

    if not 1 <= len(name) <= limits.WORKSPACE_NAME_CHARACTERS or not name.isprintable():
        most = limits.WORKSPACE_NAME_CHARACTERS
        raise typer.BadParameter(f"takes 1 to {most} printable characters", param_hint="NAME")
    with open_deployment_for_command(data, create=init) as runtime:
        print_data_folder(runtime.settings)
        with runtime.database.transaction(write=True) as db:
            made = workspaces.create_workspace_as_operator(db, runtime.settings, name, tier=tier)
    if as_json:
        print_json({"workspace_id": made.workspace_id, "key_id": made.key_id, "key": made.key})
        return
    typer.echo(made.key)
    typer.echo(
        f"Workspace {made.workspace_id}, key {made.key_id}. Keep the key: it is not shown again.", err=True
    )


@app.command("list")
def list_workspaces_command(data: DataDir = None, as_json: AsJson = False) -> None:
    """List all workspaces by name: id, status, tier, region, name."""
    from recorder.access import workspaces

    with open_command_database(data) as (_, database), database.transaction(write=False) as db:
        rows = workspaces.list_workspaces(db)
    if as_json:
        print_json([workspace.model_dump(mode="json") for workspace in rows])
        return
    for workspace in rows:
        typer.echo(
            f"{workspace.id}  {workspace.status}  {workspace.tier}  {workspace.region}  {workspace.name}"
        )


@app.command("show")
def show_workspace_command(name: _Name, data: DataDir = None, as_json: AsJson = False) -> None:
    """Show a workspace with its settings and its usage of this month."""
    from recorder.access import workspaces
    from recorder.access.quota import read_quota

    with open_command_database(data) as (_, database), database.transaction(write=False) as db:
        workspace = workspaces.workspace_to_wire(workspaces.find_workspace(db, name))
        quota = read_quota(db, Tenant(workspace.id, "live"))
    shown = {**workspace.model_dump(mode="json"), "quota": quota.model_dump(mode="json")}
    if as_json:
        print_json(shown)
        return
    for member, value in _flatten_workspace_members(shown):
        typer.echo(f"{member}: {'unlimited' if value is None else value}")


@app.command("set")
def set_workspace_command(
    name: _Name,
    tier: Annotated[str | None, _TIER] = None,
    status: Annotated[
        Literal["active", "suspended", "expired"] | None, typer.Option(help="Only active ones are served.")
    ] = None,
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Give a workspace another tier or status; in force everywhere within 5 seconds."""
    from recorder.access import workspaces

    if tier is None and status is None:
        raise WrongOptions("Name what to change: --tier or --status.")
    with open_command_database(data) as (_, database), database.transaction(write=True) as db:
        workspace = workspaces.set_workspace(db, name, tier=tier, status=status)
    if as_json:
        print_json(workspace.model_dump(mode="json"))
        return
    typer.echo(f"{workspace.name}: tier {workspace.tier}, {workspace.status}.", err=True)


def _flatten_workspace_members(shown: dict[str, Any], above: str = "") -> list[tuple[str, Any]]:
    """Return members and their values, those of nested objects as `outer.inner`."""
    lines: list[tuple[str, Any]] = []
    for name, value in shown.items():
        lines += (
            _flatten_workspace_members(value, f"{above}{name}.")
            if isinstance(value, dict)
            else [(above + name, value)]
        )
    return lines


keys_app = typer.Typer(no_args_is_help=True, help="API keys of workspaces.")


@keys_app.command("create")
def create_key_command(
    workspace: _Name,
    label: Annotated[str, typer.Argument(help="What the key is for.")],
    scope: Annotated[str, typer.Option(help="read, write or admin; replay:live may follow.")] = "write",
    mode: Annotated[Literal["live", "test"], typer.Option(help="Which data it sees.")] = "live",
    expires_at: Annotated[str | None, typer.Option(help="End of its validity: ISO 8601 with a zone.")] = None,
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create a key; it is shown only once."""
    from pydantic import ValidationError

    from recorder.access.key_admin import create_key_as_operator
    from recorder.access.workspaces import find_workspace
    from recorder.audit.log import Origin
    from recorder.errors import ValidationFailed
    from recorder.models.field_messages import make_field_message
    from recorder.models.workspace import KeyCreate

    body = {"label": label, "scope": scope, "mode": mode, "expires_at": expires_at}
    try:
        wanted = KeyCreate.model_validate(body)
    except ValidationError as error:
        if any(problem["loc"][0] == "expires_at" for problem in error.errors()):
            raise typer.BadParameter(
                "takes a time with a zone, such as 2030-01-31T00:00:00Z", param_hint="--expires-at"
            ) from error
        problems = [f"{problem['loc'][0]}: {make_field_message(problem)}" for problem in error.errors()]
        raise typer.BadParameter(" ".join(problems)) from error
    with open_command_database(data) as (settings, database):
        print_data_folder(settings)
        with database.transaction(write=True) as db:
            origin = Origin.operator(find_workspace(db, workspace).id)
            try:
                made = create_key_as_operator(db, origin, wanted, settings.secret)
            except ValidationFailed as error:
                problem = error.problems[0]
                raise typer.BadParameter(
                    problem.message, param_hint="--scope" if problem.pointer == "/scope" else "LABEL"
                ) from error
    if as_json:
        print_json(made.model_dump(mode="json"))
        return
    typer.echo(made.key)
    typer.echo(f"Key {made.id}, scope {made.scope}. Keep it: it is not shown again.", err=True)


@keys_app.command("list")
def list_keys_command(workspace: _Name, data: DataDir = None, as_json: AsJson = False) -> None:
    """List the keys of a workspace, newest first: id, scope, mode, last four characters, label."""
    from recorder.access import key_admin
    from recorder.access.workspaces import find_workspace
    from recorder.storage.list_pages import read_all_pages

    with open_command_database(data) as (settings, database):
        print_data_folder(settings)
        with database.transaction(write=False) as db:
            tenant = Tenant(find_workspace(db, workspace).id, "live")
            keys = list(read_all_pages(lambda last_id: key_admin.list_keys(db, tenant, before_id=last_id)))
    if as_json:
        print_json([key.model_dump(mode="json") for key in keys])
        return
    print_aligned_table(
        ("key", "scope", "mode", "last4", "label"),
        [(key.id, key.scope, key.mode, f"…{key.last4}", key.label) for key in keys],
    )


@keys_app.command("revoke")
def revoke_key_command(
    key_id: Annotated[str, typer.Argument(help="Id of a key, as `list` shows it.")],
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key; running processes refuse it within 5 seconds."""
    from recorder.access import key_admin
    from recorder.audit.log import Origin

    with open_command_database(data) as (settings, database):
        print_data_folder(settings)
        with database.transaction(write=True) as db:
            workspace_id = key_admin.find_key_as_operator(db, key_id).workspace_id
            key_admin.revoke_key(db, Tenant(workspace_id, "live"), Origin.operator(workspace_id), key_id)
    typer.echo(f"Key {key_id} is revoked.", err=True)
    if as_json:
        print_json({"id": key_id, "revoked": True})
