"""Recipes: exports that are asked for again and again, each tick of a cron line once. docs/recipes.md.

The row's `next_at` is the claim on a tick: whoever moves it on makes the export, in the same transaction. Two
daemons, or a daemon that is killed and looks again, make one export.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.audit.log import Origin, record
from recorder.errors import (
    Conflict,
    Invalid,
    NotFound,
    QuotaExceeded,
    RecorderError,
    Unavailable,
    json_pointer,
)
from recorder.exports.asking.cron import read_cron
from recorder.exports.asking.drafts import dataset_name, draft_export
from recorder.exports.asking.requests import probe_destination, require_known, store_export
from recorder.models.export_request import ExportCreate, ExportFilter
from recorder.models.export_rows import ExportRow
from recorder.models.recipe import RecipeRow
from recorder.models.workspace import WorkspaceRow
from recorder.runtime import Runtime

log = logging.getLogger("recorder.exports")


class RecipeExists(Conflict):
    """A recipe of this name is there already."""

    def __init__(self) -> None:
        super().__init__("A recipe of this name exists; remove it first, or choose another name.")


class UnknownRecipe(NotFound):
    """The operator named a recipe that is not there."""

    def __init__(self) -> None:
        super().__init__("recipe", "No recipe has this name; `recorder recipes list` shows them.")


class InvalidRecipe(Invalid):
    """What the recipe asks for is no request for an export."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"The recipe's {place or 'request'} cannot be read: {why}.")


@dataclass(frozen=True)
class ListedRecipe:
    """A recipe and the last export that it made."""

    recipe: RecipeRow
    export: ExportRow | None

    @property
    def dataset(self) -> str:
        """The dataset that its exports are versions of."""
        return dataset_name(self.recipe.name, self.recipe.body["workflow"])

    @property
    def error(self) -> dict[str, Any] | None:
        """`{code, message}` of what went wrong last: at the last tick, else in the export it made."""
        return self.recipe.last_error or (None if self.export is None else self.export.error)


def read_request(members: Mapping[str, Any]) -> ExportCreate:
    """The request that these members of the body describe.

    Raises:
        InvalidRecipe: if they describe none.
    """
    try:
        return ExportCreate.model_validate(dict(members))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise InvalidRecipe(json_pointer(*first["loc"])[1:], first["msg"]) from error


def add_recipe(
    runtime: Runtime,
    workspace_id: str,
    mode: str,
    body: ExportCreate,
    *,
    cron: str,
    timezone: str,
    origin: Origin,
) -> RecipeRow:
    """Save a request under its tag; it is accepted where an export that asks for the same would be.

    Raises:
        InvalidCron: if the times cannot be read.
        RecipeExists: if the name is taken.
        RecorderError: what `create_export` raises for this request; a spent quota alone is no hindrance.
    """
    now = clock.now()
    assert body.tag is not None
    row = RecipeRow(
        workspace_id=workspace_id,
        mode=mode,
        name=body.tag,
        body=body.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"tag"}),
        cron=cron,
        timezone=timezone,
        next_at=read_cron(cron, timezone).next_after(now),
        created_at=now,
    )
    _try_out(runtime, row)
    with runtime.database.transaction(write=True) as db:
        if db.get(RecipeRow, _key(row)) is not None:
            raise RecipeExists
        db.add(row)
        shown = {name: row.body[name] for name in ("workflow", "format", "destination")}
        details = {**shown, "cron": cron, "timezone": timezone, "mode": mode}
        record(db, origin, "recipe.create", resource_type="recipe", resource_id=row.name, details=details)
    return row


def remove_recipe(db: DbSession, workspace_id: str, mode: str, name: str, *, origin: Origin) -> None:
    """Make no more exports of this recipe; those it made stay.

    Raises:
        UnknownRecipe: if there is none.
    """
    db.delete(_find(db, workspace_id, mode, name))
    record(db, origin, "recipe.delete", resource_type="recipe", resource_id=name, details={"mode": mode})


def list_recipes(
    db: DbSession, *, workspace_id: str | None = None, mode: str | None = None
) -> list[ListedRecipe]:
    """Recipes with their last exports, by workspace, mode and name."""
    statement = select(RecipeRow)
    if workspace_id is not None:
        statement = statement.where(RecipeRow.workspace_id == workspace_id)
    if mode is not None:
        statement = statement.where(RecipeRow.mode == mode)
    recipes = sorted(db.exec(statement), key=_key)
    return [ListedRecipe(one, _last_export(db, one)) for one in recipes]


def run_recipe(runtime: Runtime, workspace_id: str, mode: str, name: str, *, origin: Origin) -> ExportRow:
    """Make the recipe's export at once, beside its ticks.

    Raises:
        UnknownRecipe: if there is none.
        RecorderError: what `create_export` raises.
    """
    with runtime.database.transaction(write=False) as db:
        draft = _draft_at(_find(db, workspace_id, mode, name), clock.now())
    probe_destination(draft, runtime.settings)
    with runtime.database.transaction(write=True) as db:
        return _make_export(db, runtime, _find(db, workspace_id, mode, name), draft, origin)


def make_due_exports(runtime: Runtime) -> Iterator[ListedRecipe]:
    """Make the export of each recipe that is due, one after the other; gives those whose tick was taken.

    Ticks that were missed come to one export, that of the last. A recipe that cannot be followed notes why
    and keeps no other from its export; while a store is away its tick waits for the next look.
    """
    now = clock.now()
    with runtime.database.transaction(write=False) as db:
        due = select(RecipeRow).join(WorkspaceRow, col(WorkspaceRow.id) == col(RecipeRow.workspace_id))
        due = due.where(col(RecipeRow.next_at) <= now, col(WorkspaceRow.status) == "active")
        recipes = db.exec(due.order_by(col(RecipeRow.next_at))).all()
    for recipe in recipes:
        taken = _follow(runtime, recipe, now)
        if taken is not None:
            yield taken


def _follow(runtime: Runtime, recipe: RecipeRow, now: datetime) -> ListedRecipe | None:
    """Make the export of a recipe's tick; None if another process did, or will."""
    try:
        # Before the tick is taken, since a store that does not answer must hold up no other writer.
        probe_destination(_draft_at(recipe, now), runtime.settings)
        with runtime.database.transaction(write=True) as db:
            held = _claim(db, recipe, now)
            if held is None:
                return None
            assert held.last_at is not None
            origin = Origin.system(held.workspace_id, "recipes")
            return ListedRecipe(held, _make_export(db, runtime, held, _draft_at(held, held.last_at), origin))
    except Unavailable as error:
        return _note_error(runtime, recipe, error.code, str(error), taken_at=None)
    except RecorderError as error:
        return _note_error(runtime, recipe, error.code, str(error), taken_at=now)
    except Exception:
        # A recipe that we cannot follow keeps no other from its export.
        log.exception("the recipe %s of %s could not be followed", recipe.name, recipe.workspace_id)
        text = "Something went wrong on our side; the daemon's log tells more."
        return _note_error(runtime, recipe, "internal_error", text, taken_at=now)


def _claim(db: DbSession, recipe: RecipeRow, now: datetime) -> RecipeRow | None:
    """The row with its tick taken and the next one set; None if it is no longer as it was read."""
    same = select(RecipeRow).where(
        RecipeRow.workspace_id == recipe.workspace_id,
        RecipeRow.mode == recipe.mode,
        RecipeRow.name == recipe.name,
        RecipeRow.next_at == recipe.next_at,
    )
    row = db.exec(same.with_for_update()).one_or_none()
    if row is not None:
        cron = read_cron(row.cron, row.timezone)
        # At the earliest the tick that waits, whatever has become of the zone's clocks since.
        row.last_at = max(row.next_at, cron.last_until(now) or row.next_at)
        row.next_at = cron.next_after(now)
        db.add(row)
    return row


def _note_error(
    runtime: Runtime, recipe: RecipeRow, code: str, message: str, *, taken_at: datetime | None
) -> ListedRecipe | None:
    """Say at the recipe why its tick made no export; the tick is over if it was taken."""
    with runtime.database.transaction(write=True) as db:
        row = db.get(RecipeRow, _key(recipe)) if taken_at is None else _claim(db, recipe, taken_at)
        if row is None:
            return None
        row.last_error = {"code": code, "message": message}
        db.add(row)
        return ListedRecipe(row, _last_export(db, row))


def _make_export(
    db: DbSession, runtime: Runtime, recipe: RecipeRow, draft: ExportRow, origin: Origin
) -> ExportRow:
    """Queue the export that the recipe asks for."""
    export = store_export(db, runtime.settings, draft, origin=origin)
    recipe.last_export_id, recipe.last_error = export.id, None
    db.add(recipe)
    return export


def _draft_at(recipe: RecipeRow, moment: datetime) -> ExportRow:
    """The export that the recipe asks for at this moment; relative times count from it, without a gap."""
    body = read_request({**recipe.body, "tag": recipe.name})
    asked = body.filter or ExportFilter()
    times = {"until": clock.to_iso(moment)}
    for name in ("since", "until"):
        text = getattr(asked, name)
        if text is not None:
            times[name] = clock.to_iso(clock.resolve_time(text, now=moment, name=name))
    body = body.model_copy(update={"filter": asked.model_copy(update=times)})
    return draft_export(recipe.workspace_id, recipe.mode, body)


def _try_out(runtime: Runtime, row: RecipeRow) -> None:
    """See that the export would be accepted if it were due."""
    draft = _draft_at(row, row.created_at)
    with runtime.database.transaction(write=False) as db, suppress(QuotaExceeded):
        require_known(db, draft)
    probe_destination(draft, runtime.settings)


def _find(db: DbSession, workspace_id: str, mode: str, name: str) -> RecipeRow:
    row = db.get(RecipeRow, (workspace_id, mode, name))
    if row is None:
        raise UnknownRecipe
    return row


def _last_export(db: DbSession, recipe: RecipeRow) -> ExportRow | None:
    return None if recipe.last_export_id is None else db.get(ExportRow, recipe.last_export_id)


def _key(recipe: RecipeRow) -> tuple[str, str, str]:
    return recipe.workspace_id, recipe.mode, recipe.name
