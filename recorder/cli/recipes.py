"""`recorder recipes`: exports that are repeated on a schedule. Contract §9, docs/recipes.md."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from recorder.cli.options import (
    AnyMode,
    AnyWorkspace,
    AsJson,
    DataDir,
    FormatOption,
    OneMode,
    OneWorkspace,
    SamplingOption,
    Split,
    To,
    Where,
    find_any_workspace_id_option,
    find_workspace_id_option,
    make_export_members,
    open_deployment_for_command,
    print_json,
)
from recorder.tenant import Tenant

if TYPE_CHECKING:
    from recorder.exports.requests.recipes import ListedRecipe

app = typer.Typer(no_args_is_help=True, help="Exports that are repeated on a schedule.")

_Name = Annotated[str, typer.Argument(help="Name of the recipe, and of its dataset.")]


@app.command("add")
def add(
    name: _Name,
    workflow: Annotated[list[str], typer.Argument(help="One or more workflows.")],
    cron: Annotated[str, typer.Option(help="When: minute hour day month weekday, such as `0 6 * * 1-5`.")],
    timezone: Annotated[str, typer.Option(help="Whose clocks, such as Europe/Berlin.")] = "UTC",
    format: FormatOption = "parquet",
    where: Where = None,
    sampling: SamplingOption = "event_only",
    split: Split = None,
    to: To = "signed_url",
    workspace: OneWorkspace = None,
    mode: OneMode = "live",
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Save a recipe for the running service; its destination is checked at once."""
    from recorder import clock
    from recorder.audit.log import Origin
    from recorder.exports.requests import recipes

    members = make_export_members(workflow, format=format, to=to, where=where, sampling=sampling, split=split)
    body = recipes.read_recipe_request({**members, "tag": name})
    with open_deployment_for_command(data) as runtime:
        with runtime.database.transaction(write=False) as db:
            workspace_id = find_workspace_id_option(db, workspace)
        origin = Origin.operator(workspace_id)
        made = recipes.add_recipe(
            runtime, Tenant(workspace_id, mode), body, cron=cron, timezone=timezone, origin=origin
        )
    if as_json:
        print_json(_recipe_to_json(recipes.ListedRecipe(made, None)))
        return
    typer.echo(f"{name} is due at {clock.to_iso(made.next_at)}.", err=True)


@app.command("list")
def list_recipes_command(
    workspace: AnyWorkspace = None,
    mode: AnyMode = None,
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List recipes: when each is due, the result of its last export, and errors."""
    from recorder.exports.requests.recipes import list_recipes

    with open_deployment_for_command(data) as runtime, runtime.database.transaction(write=False) as db:
        workspace_id = find_any_workspace_id_option(db, workspace)
        listed = list_recipes(db, workspace_id=workspace_id, mode=mode)
    if as_json:
        print_json([_recipe_to_json(recipe) for recipe in listed])
    elif listed:
        _print_recipes(listed)
    else:
        typer.echo("There is no recipe; `recorder recipes add` creates one.", err=True)


@app.command("remove")
def remove(
    name: _Name,
    workspace: OneWorkspace = None,
    mode: OneMode = "live",
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Remove a recipe; its exports stay."""
    from recorder.audit.log import Origin
    from recorder.exports.requests.recipes import remove_recipe

    with open_deployment_for_command(data) as runtime, runtime.database.transaction(write=True) as db:
        workspace_id = find_workspace_id_option(db, workspace)
        remove_recipe(db, Tenant(workspace_id, mode), name, origin=Origin.operator(workspace_id))
    typer.echo(f"{name} is removed.", err=True)
    if as_json:
        print_json({"name": name, "removed": True})


@app.command("run")
def run(
    name: _Name,
    workspace: OneWorkspace = None,
    mode: OneMode = "live",
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create the export of a recipe now, besides its schedule; print the export's id."""
    from recorder.audit.log import Origin
    from recorder.exports.requests.recipes import run_recipe

    with open_deployment_for_command(data) as runtime:
        with runtime.database.transaction(write=False) as db:
            workspace_id = find_workspace_id_option(db, workspace)
        export = run_recipe(runtime, Tenant(workspace_id, mode), name, origin=Origin.operator(workspace_id))
    if as_json:
        print_json({"id": export.id, "status": export.status})
        return
    typer.echo(export.id)


def _recipe_to_json(listed: "ListedRecipe") -> dict[str, Any]:
    from recorder import clock

    row, export = listed.recipe, listed.export
    last = export and {"id": export.id, "status": export.status, "rows": export.rows}
    return {
        "name": row.name,
        "workspace_id": row.workspace_id,
        "mode": row.mode,
        "cron": row.cron,
        "timezone": row.timezone,
        "dataset": listed.dataset,
        "next_at": clock.to_iso(row.next_at),
        "last_at": row.last_at and clock.to_iso(row.last_at),
        "last_export": last,
        "error": listed.error,
        "request": row.body,
    }


def _print_recipes(recipes: list["ListedRecipe"]) -> None:
    """Print each recipe as a block of lines, none of which is cut: names and ids are copied from there."""
    for number, listed in enumerate(recipes):
        if number:
            typer.echo()
        for label, lines in _format_recipe_lines(listed):
            for position, line in enumerate(lines):
                typer.echo(f"{label if position == 0 else '':<11}{line}")


def _format_recipe_lines(listed: "ListedRecipe") -> list[tuple[str, list[str]]]:
    """Return the labels of a recipe's block, each with its lines."""
    from recorder import clock

    row, export = listed.recipe, listed.export
    body, error = row.body, listed.error
    request = [f"{', '.join(body['workflow'])} as {body['format']}, {body['destination']['kind']}"]
    request += [f"{name}={value}" for name, value in body.get("filter", {}).items()]
    request += _format_split_and_sampling_lines(body)
    last = ["none yet"]
    if export is not None:
        figures = "" if export.rows is None else f", {export.rows:,} rows"
        last = [f"{export.status}{figures}, {clock.to_iso(export.created_at)}", export.id]
    return [
        ("recipe", [row.name]),
        ("workspace", [f"{row.workspace_id}, {row.mode}"]),
        ("asks for", request),
        ("when", [f"{row.cron}, {row.timezone}; next {clock.to_iso(row.next_at)}"]),
        ("last", last),
        *([] if error is None else [("error", [f"{error['code']}: {error['message']}"])]),
    ]


def _format_split_and_sampling_lines(body: dict[str, Any]) -> list[str]:
    """Return lines with the split and the sampling of a request, as far as they are set."""
    lines = []
    if (split := body.get("split")) is not None:
        lines.append(f"split {split['by']} {split['validation']:g} {split['test']:g}")
    sampling = body.get("frame_sampling", {})
    mode, interval_ms = sampling.get("mode", "event_only"), sampling.get("interval_ms")
    cadence = "" if interval_ms is None else f":{interval_ms}"
    plus = "+actions" if sampling.get("keep_action_frames") else ""
    if (chosen := f"{mode}{cadence}{plus}") != "event_only":
        lines.append(f"sampling {chosen}")
    return lines
