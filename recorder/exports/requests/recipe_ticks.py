"""Ticks of recipes: one export for each moment of a cron line. docs/recipes.md.

The row's `next_at` is the claim on a tick: the process that advances it queues the export in the same
transaction. Two daemons, or a daemon that is killed and started again, make one export.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.audit.log import Origin
from recorder.errors import RecorderError, Unavailable
from recorder.exports.requests.cron import InvalidCron, parse_cron
from recorder.exports.requests.export_operations import (
    prepare_export_draft,
    probe_draft_destination,
    queue_draft_export,
)
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

#: A call reads so many recipes, and tries no further one after so long: Dagster ends a tick after a minute.
_RECIPES_AT_ONCE = 100
_TICK_S = 20.0
_UNREADABLE_RETRY = timedelta(days=1)
# A clock that is set back by less than this repeats no tick.
_CLOCK_STEP = timedelta(minutes=10)


def queue_due_recipe_ticks(runtime: Runtime, *, most_s: float = _TICK_S) -> Iterator[ListedRecipe]:
    """Queue the exports of due recipes, one after the other; yield the recipes whose ticks were claimed.

    Ticks that were missed make one export, that of the last. A recipe that fails stores its error and does
    not hold up the others; while a store does not answer, its tick waits for a later call. Workspaces take
    turns, and recipes whose stores did not answer come after the others of their workspace.

    Args:
        runtime: deployment.
        most_s: seconds after which no further recipe is tried in this call.
    """
    now, began = clock.now(), time.monotonic()
    _correct_future_ticks(runtime, now)
    for number, recipe in enumerate(_list_due_recipes(runtime, now)):
        if number and time.monotonic() - began >= most_s:
            return
        listed = _queue_recipe_tick(runtime, recipe, now)
        if listed is not None:
            yield listed


def _correct_future_ticks(runtime: Runtime, now: datetime) -> None:
    """Compute the next ticks of recipes again whose last one was claimed while the clock was ahead.

    Without this, a recipe would wait until the time that the wrong clock showed.
    """
    claimed_at = func.coalesce(col(RecipeRow.last_at), col(RecipeRow.created_at))
    ahead = select(RecipeRow).where(claimed_at > now + _CLOCK_STEP, col(RecipeRow.next_at) > now)
    with runtime.database.transaction(write=False) as db:
        recipes = list(db.exec(ahead))
    for recipe in recipes:
        with suppress(InvalidCron):
            next_at = parse_cron(recipe.cron, recipe.timezone).next_after(now)
            if next_at < recipe.next_at:
                _move_next_tick(runtime, recipe, next_at)


def _move_next_tick(runtime: Runtime, recipe: RecipeRow, next_at: datetime) -> None:
    """Set the next tick of a recipe, unless it changed since it was read."""
    with runtime.database.transaction(write=True) as db:
        row = _lock_unchanged_recipe(db, recipe)
        if row is not None:
            moved = (recipe.name, recipe.workspace_id, clock.to_iso(row.next_at), clock.to_iso(next_at))
            log.warning("the clock was ahead: recipe %s of %s is due not at %s but at %s", *moved)
            row.next_at = next_at
            db.add(row)


def _list_due_recipes(runtime: Runtime, now: datetime) -> list[RecipeRow]:
    """Return recipes that are due, the first of each workspace before the second ones.

    Workspaces whose recipes were last tried in vain come after the others.
    """
    tried_at, workspace_id = col(RecipeRow.tried_at), col(RecipeRow.workspace_id)
    order = (tried_at.asc().nulls_first(), col(RecipeRow.next_at), col(RecipeRow.mode), col(RecipeRow.name))
    turn = func.row_number().over(partition_by=workspace_id, order_by=order)
    last = func.max(tried_at).over(partition_by=workspace_id)
    due = select(RecipeRow).join(WorkspaceRow, col(WorkspaceRow.id) == col(RecipeRow.workspace_id))
    due = due.where(col(RecipeRow.next_at) <= now, col(WorkspaceRow.status) == "active")
    in_turn = due.order_by(turn, last.asc().nulls_first(), col(RecipeRow.next_at)).limit(_RECIPES_AT_ONCE)
    with runtime.database.transaction(write=False) as db:
        return list(db.exec(in_turn))


def _queue_recipe_tick(runtime: Runtime, recipe: RecipeRow, now: datetime) -> ListedRecipe | None:
    """Queue the export of a recipe's tick; return None if another process did, or will."""
    try:
        prepared = recipe_draft_at(recipe, _find_recipe_tick(recipe, now))
        # Before the tick is claimed: a long count, or a store that does not answer, must hold up no writer.
        with runtime.database.transaction(write=False) as db:
            prepare_export_draft(db, prepared)
        probe_draft_destination(prepared, runtime.settings)
        with runtime.database.transaction(write=True) as db:
            held = _claim_recipe_tick(db, recipe, now)
            if held is None:
                return None
            assert held.last_at is not None
            origin = Origin.system(held.workspace_id, "recipes")
            draft = recipe_draft_at(held, held.last_at)
            draft.awaited_sessions = prepared.awaited_sessions
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
    """Return the row with its tick claimed and the next one set.

    Returns:
        None if the row changed since it was read, or if its tick is not after the last one, or after the
        creation: `_correct_future_ticks` set it while the clock was slow. Then only the next one is set.
    """
    row = _lock_unchanged_recipe(db, recipe)
    if row is None:
        return None
    tick, after = _find_recipe_tick(row, now), row.last_at or row.created_at
    row.next_at = parse_cron(row.cron, row.timezone).next_after(now)
    row.tried_at = None
    db.add(row)
    if tick <= after <= now:
        return None
    row.last_at = tick
    return row


def _lock_unchanged_recipe(db: DbSession, recipe: RecipeRow) -> RecipeRow | None:
    """Return the row of a recipe, locked until the transaction ends; None if its next tick has changed."""
    same = select(RecipeRow).where(
        *in_tenant(RecipeRow, recipe.tenant),
        RecipeRow.name == recipe.name,
        RecipeRow.next_at == recipe.next_at,
    )
    return db.exec(same.with_for_update()).one_or_none()


def _find_recipe_tick(recipe: RecipeRow, now: datetime) -> datetime:
    """Return the last tick of a due recipe: at the earliest the one that waits.

    The rules of its time zone may have changed since.
    """
    last = parse_cron(recipe.cron, recipe.timezone).find_last(now)
    return max(recipe.next_at, last or recipe.next_at)


def _note_recipe_tick_error(
    runtime: Runtime, recipe: RecipeRow, code: str, message: str, *, claimed_at: datetime | None
) -> ListedRecipe | None:
    """Store at the recipe why its tick made no export; a claimed tick is over.

    Where its cron line or time zone can be read no more, it is tried again after a day.
    """
    with runtime.database.transaction(write=True) as db:
        try:
            row = (
                db.get(RecipeRow, recipe_key(recipe))
                if claimed_at is None
                else _claim_recipe_tick(db, recipe, claimed_at)
            )
        except RecorderError:
            row = db.get(RecipeRow, recipe_key(recipe), populate_existing=True)
            if row is None or row.next_at != recipe.next_at:
                return None
            row.next_at, claimed_at = clock.now() + _UNREADABLE_RETRY, None
        if row is None:
            return None
        row.last_error = {"code": code, "message": message}
        if claimed_at is None:
            row.tried_at = clock.now()
        db.add(row)
        return ListedRecipe(row, find_last_export(db, row))
