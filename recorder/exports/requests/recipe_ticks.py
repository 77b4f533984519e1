"""Ticks of recipes: the export of each cron line's moment, once. docs/recipes.md.

The row's `next_at` is the claim on a tick: whoever moves it on makes the export, in the same transaction. Two
daemons, or a daemon that is killed and looks again, make one export.
"""

import logging
from collections.abc import Iterator
from datetime import datetime

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.audit.log import Origin
from recorder.errors import RecorderError, Unavailable
from recorder.exports.requests.queue import probe_destination
from recorder.exports.requests.recipes import (
    ListedRecipe,
    draft_at,
    key_of,
    last_export,
    make_export,
    read_cron,
)
from recorder.models.export import RecipeRow
from recorder.models.workspace import WorkspaceRow
from recorder.runtime import Runtime

log = logging.getLogger("recorder.exports")


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
        probe_destination(draft_at(recipe, now), runtime.settings)
        with runtime.database.transaction(write=True) as db:
            held = _claim(db, recipe, now)
            if held is None:
                return None
            assert held.last_at is not None
            origin = Origin.system(held.workspace_id, "recipes")
            return ListedRecipe(held, make_export(db, runtime, held, draft_at(held, held.last_at), origin))
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
        row = db.get(RecipeRow, key_of(recipe)) if taken_at is None else _claim(db, recipe, taken_at)
        if row is None:
            return None
        row.last_error = {"code": code, "message": message}
        db.add(row)
        return ListedRecipe(row, last_export(db, row))
