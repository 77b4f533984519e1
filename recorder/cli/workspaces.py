"""`recorder workspace`: the tenants of a deployment. Contract §9."""

from typing import Annotated

import typer

from recorder.cli.options import AsJson, DataDir, print_json

app = typer.Typer(no_args_is_help=True, help="Workspaces of a deployment.")


@app.command("create")
def create_workspace(
    name: str,
    tier: Annotated[str, typer.Option(help="Its table of limits.")] = "default",
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a workspace and its first key; the key is shown this once."""
    from recorder.access import keys
    from recorder.runtime import Runtime
    from recorder.settings import Settings

    runtime = Runtime.open(Settings.from_env(data_dir=data))
    settings = runtime.settings
    with runtime.database.transaction(write=True) as db:
        made = keys.create_workspace(db, name, region=settings.region, secret=settings.secret, tier=tier)
    runtime.close()
    if as_json:
        print_json({"workspace_id": made.workspace_id, "key_id": made.key_id, "key": made.key})
        return
    typer.echo(made.key)
    typer.echo(
        f"Workspace {made.workspace_id}, key {made.key_id}. Keep the key: it is not shown again.", err=True
    )
