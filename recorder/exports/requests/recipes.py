"""Recipes: saved requests for exports that are repeated by a cron line. docs/recipes.md."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError
from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder import clock
from recorder.audit.log import Origin, record_audit_entry
from recorder.errors import (
    Conflict,
    Invalid,
    LimitReached,
    NotFound,
    QuotaExceeded,
    json_pointer,
)
from recorder.exports.requests.cron import parse_cron
from recorder.exports.requests.export_operations import (
    create_export,
    probe_draft_destination,
    require_queueable_draft,
)
from recorder.exports.requests.validation import make_dataset_name, validate_export_request
from recorder.models.export import ExportRow, RecipeRow
from recorder.models.export_request import ExportCreate, ExportFilter
from recorder.models.field_messages import make_field_message
from recorder.models.wire import allowed_wire_members, describe_allowed_wire_names
from recorder.runtime import Runtime
from recorder.tenant import Tenant

_LONGEST_CLOCK_CHANGE = timedelta(hours=1)


class RecipeExists(Conflict):
    """A recipe of this name exists already."""

    def __init__(self) -> None:
        super().__init__("A recipe of this name exists; remove it first, or choose another name.")


class UnknownRecipe(NotFound):
    """No recipe has the name that the operator gave."""

    def __init__(self) -> None:
        super().__init__("recipe", "No recipe has this name; `recorder recipes list` shows them.")


class InvalidRecipe(Invalid):
    """The body of the recipe is no request for an export."""

    def __init__(self, pointer: str, why: str) -> None:
        super().__init__(f"The recipe's {pointer or 'request'} cannot be read. {why}")


@dataclass(frozen=True)
class ListedRecipe:
    """A recipe and the last export that it made."""

    recipe: RecipeRow
    export: ExportRow | None

    @property
    def dataset(self) -> str:
        """The dataset that its exports are versions of."""
        return make_dataset_name(self.recipe.name, self.recipe.body["workflow"])

    @property
    def error(self) -> dict[str, Any] | None:
        """`{code, message}` of what went wrong last: at the last tick, else in the export it made."""
        return self.recipe.last_error or (None if self.export is None else self.export.error)


def read_recipe_request(members: Mapping[str, Any]) -> ExportCreate:
    """Return the request that these members of the body describe.

    Raises:
        InvalidRecipe: if they describe none.
    """
    try:
        return ExportCreate.model_validate(dict(members))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = make_field_message(first)
        if first["type"] == "extra_forbidden":
            allowed = allowed_wire_members(ExportCreate, first["loc"][:-1], members)
            why = f"Unknown member. {describe_allowed_wire_names(allowed)}"
        raise InvalidRecipe(json_pointer(*first["loc"])[1:], why) from error


def add_recipe(
    runtime: Runtime,
    tenant: Tenant,
    body: ExportCreate,
    *,
    cron: str,
    timezone: str,
    origin: Origin,
) -> RecipeRow:
    """Store a recipe under its tag: an export request that the service repeats at the times of `cron`.

    Raises:
        InvalidCron: if the times cannot be read.
        RecipeExists: if the name is taken.
        RecorderError: as `create_export` for this request, except for a spent quota and for too many exports
            that are queued or running.
    """
    now = clock.now()
    assert body.tag is not None
    row = RecipeRow(
        workspace_id=tenant.workspace_id,
        mode=tenant.mode,
        name=body.tag,
        body=body.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"tag"}),
        cron=cron,
        timezone=timezone,
        next_at=parse_cron(cron, timezone).next_after(now),
        created_at=now,
    )
    _check_recipe_request(runtime, row)
    with runtime.database.transaction(write=True) as db:
        if db.get(RecipeRow, recipe_key(row)) is not None:
            raise RecipeExists
        db.add(row)
        shown = {name: row.body[name] for name in ("workflow", "format", "destination")}
        details = {**shown, "cron": cron, "timezone": timezone, "mode": tenant.mode}
        record_audit_entry(
            db, origin, "recipe.create", resource_type="recipe", resource_id=row.name, details=details
        )
    return row


def remove_recipe(db: DbSession, tenant: Tenant, name: str, *, origin: Origin) -> None:
    """Delete a recipe; the exports that it made stay.

    Raises:
        UnknownRecipe: if there is none.
    """
    db.delete(_find_recipe(db, tenant, name))
    record_audit_entry(
        db, origin, "recipe.delete", resource_type="recipe", resource_id=name, details={"mode": tenant.mode}
    )


def list_recipes(
    db: DbSession, *, workspace_id: str | None = None, mode: str | None = None
) -> list[ListedRecipe]:
    """Return recipes with their last exports, by workspace, mode and name."""
    statement = select(RecipeRow)
    if workspace_id is not None:
        statement = statement.where(RecipeRow.workspace_id == workspace_id)
    if mode is not None:
        statement = statement.where(RecipeRow.mode == mode)
    recipes = sorted(db.exec(statement), key=recipe_key)
    return [ListedRecipe(recipe, find_last_export(db, recipe)) for recipe in recipes]


def list_recipe_datasets(db: DbSession) -> set[str]:
    """Return the names of all datasets that have a recipe."""
    # The tag of an export names its dataset, whatever its workflows.
    return {make_dataset_name(name, []) for name in db.exec(select(RecipeRow.name).distinct())}


def run_recipe(runtime: Runtime, tenant: Tenant, name: str, *, origin: Origin) -> ExportRow:
    """Queue the export of a recipe at once, beside its ticks.

    Raises:
        UnknownRecipe: if there is none.
        RecorderError: as `create_export`.
    """
    with runtime.database.transaction(write=False) as db:
        body = recipe_request_at(_find_recipe(db, tenant, name), clock.now())
    return create_export(
        runtime,
        tenant,
        body,
        origin=origin,
        on_stored=lambda db, row: note_recipe_export(db, _find_recipe(db, tenant, name), row),
    )


def note_recipe_export(db: DbSession, recipe: RecipeRow, export: ExportRow) -> None:
    """Store at a recipe that it made an export."""
    recipe.last_export_id, recipe.last_error = export.id, None
    db.add(recipe)


def recipe_request_at(recipe: RecipeRow, moment: datetime) -> ExportCreate:
    """Return the request of a recipe at a moment, from which relative times count without a gap.

    Raises:
        InvalidCron: if the cron line or the time zone can be read no more.
    """
    cron = parse_cron(recipe.cron, recipe.timezone)
    body = read_recipe_request({**recipe.body, "tag": recipe.name})
    filters = body.filter or ExportFilter()
    times = {"until": clock.to_iso(moment)}
    for name in ("since", "until"):
        text = getattr(filters, name)
        if text is not None:
            resolved = clock.resolve_time(text, now=moment.astimezone(cron.zone), name=name)
            if text.endswith(("d", "w")) and cron.next_after(moment - timedelta(seconds=1)) == moment:
                # A tick of a time that the clocks skipped or repeated that day was up to an hour off.
                resolved = cron.find_nearest(resolved, within=_LONGEST_CLOCK_CHANGE) or resolved
            times[name] = clock.to_iso(resolved)
    return body.model_copy(update={"filter": filters.model_copy(update=times)})


def recipe_draft_at(recipe: RecipeRow, moment: datetime) -> ExportRow:
    """Return the export that a recipe makes at a moment, not stored yet."""
    return validate_export_request(recipe.tenant, recipe_request_at(recipe, moment))


def _check_recipe_request(runtime: Runtime, row: RecipeRow) -> None:
    """Check that the export would be accepted if it were due."""
    draft = recipe_draft_at(row, row.created_at)
    with runtime.database.transaction(write=False) as db, suppress(LimitReached, QuotaExceeded):
        require_queueable_draft(db, draft)
    probe_draft_destination(draft, runtime.settings)


def _find_recipe(db: DbSession, tenant: Tenant, name: str) -> RecipeRow:
    row = db.get(RecipeRow, (tenant.workspace_id, tenant.mode, name))
    if row is None:
        raise UnknownRecipe
    return row


def find_last_export(db: DbSession, recipe: RecipeRow) -> ExportRow | None:
    """Return the last export that a recipe made."""
    return None if recipe.last_export_id is None else db.get(ExportRow, recipe.last_export_id)


def recipe_key(recipe: RecipeRow) -> tuple[str, str, str]:
    """Return the primary key of a recipe's row."""
    return recipe.workspace_id, recipe.mode, recipe.name
