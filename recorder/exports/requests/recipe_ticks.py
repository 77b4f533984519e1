"""Ticks of recipes: one export for each moment of a cron line. docs/recipes.md.

The row's `next_at` is the claim on a tick: the process that advances it queues the export in the same
transaction. Two daemons, or a daemon that is killed and started again, make one export.
"""

import logging
from collections.abc import Iterator
from datetime import datetime

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.audit.log import Origin
from recorder.errors import RecorderError, Unavailable
from recorder.exports.requests.cron import parse_cron
from recorder.exports.requests.queue import probe_draft_destination, queue_draft_export
from recorder.exports.requests.recipes import (
    ListedRecipe,
    find_last_export,
    note_recipe_export,
    recipe_draft_at,
    recipe_key,
)
from recorder.models.export import RecipeRow
from recorder.models.workspace import WorkspaceRow
from recorder.runtime import Runtime
from recorder.storage.conditions import in_tenant

log = logging.getLogger("recorder.exports")


def queue_due_recipe_ticks(runtime: Runtime) -> Iterator[ListedRecipe]:
    """Queue the export of each recipe that is due, one after the other; yield those whose tick was claimed.

    Ticks that were missed make one export, that of the last. A recipe that fails stores its error and does
    not hold up the others; while a store does not answer, its tick waits for the next call.
    """
    now = clock.now()
    with runtime.database.transaction(write=False) as db:
        due = select(RecipeRow).join(WorkspaceRow, col(WorkspaceRow.id) == col(RecipeRow.workspace_id))
        due = due.where(col(RecipeRow.next_at) <= now, col(WorkspaceRow.status) == "active")
        recipes = db.exec(due.order_by(col(RecipeRow.next_at))).all()
    for recipe in recipes:
        listed = _queue_recipe_tick(runtime, recipe, now)
        if listed is not None:
            yield listed


def _queue_recipe_tick(runtime: Runtime, recipe: RecipeRow, now: datetime) -> ListedRecipe | None:
    """Queue the export of a recipe's tick; return None if another process did, or will."""
    try:
        # Before the tick is claimed, since a store that does not answer must hold up no other writer.
        probe_draft_destination(recipe_draft_at(recipe, now), runtime.settings)
        with runtime.database.transaction(write=True) as db:
            held = _claim_recipe_tick(db, recipe, now)
            if held is None:
                return None
            assert held.last_at is not None
            origin = Origin.system(held.workspace_id, "recipes")
            draft = recipe_draft_at(held, held.last_at)
            export = queue_draft_export(db, runtime.settings, draft, origin=origin)
            note_recipe_export(db, held, export)
            return ListedRecipe(held, export)
    except Unavailable as error:
        return _note_recipe_tick_error(runtime, recipe, error.code, str(error), claimed_at=None)
    except RecorderError as error:
        return _note_recipe_tick_error(runtime, recipe, error.code, str(error), claimed_at=now)
    except Exception:
        # An unexpected error of one recipe must not hold up the others.
        log.exception("the export of recipe %s of %s could not be queued", recipe.name, recipe.workspace_id)
        text = "Something went wrong on our side; the daemon's log has the details."
        return _note_recipe_tick_error(runtime, recipe, "internal_error", text, claimed_at=now)


def _claim_recipe_tick(db: DbSession, recipe: RecipeRow, now: datetime) -> RecipeRow | None:
    """Return the row with its tick claimed and the next one set; None if it changed since it was read."""
    same = select(RecipeRow).where(
        *in_tenant(RecipeRow, recipe.tenant),
        RecipeRow.name == recipe.name,
        RecipeRow.next_at == recipe.next_at,
    )
    row = db.exec(same.with_for_update()).one_or_none()
    if row is not None:
        cron = parse_cron(row.cron, row.timezone)
        # At the earliest the tick that waits, even if the rules of the zone changed since.
        row.last_at = max(row.next_at, cron.find_last(now) or row.next_at)
        row.next_at = cron.next_after(now)
        db.add(row)
    return row


def _note_recipe_tick_error(
    runtime: Runtime, recipe: RecipeRow, code: str, message: str, *, claimed_at: datetime | None
) -> ListedRecipe | None:
    """Store at the recipe why its tick made no export; a claimed tick is over."""
    with runtime.database.transaction(write=True) as db:
        row = (
            db.get(RecipeRow, recipe_key(recipe))
            if claimed_at is None
            else _claim_recipe_tick(db, recipe, claimed_at)
        )
        if row is None:
            return None
        row.last_error = {"code": code, "message": message}
        db.add(row)
        return ListedRecipe(row, find_last_export(db, row))
