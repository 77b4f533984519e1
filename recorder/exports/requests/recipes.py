"""When a recipe is due: a cron line of five fields, in a time zone. docs/recipes.md."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import ValidationError
from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder import clock
from recorder.audit.log import Origin, record
from recorder.errors import (
    Conflict,
    Invalid,
    NotFound,
    QuotaExceeded,
    json_pointer,
)
from recorder.exports.requests.queue import probe_destination, require_known, store_export
from recorder.exports.requests.validation import dataset_name, draft_export
from recorder.models.export import ExportRow, RecipeRow
from recorder.models.export_request import ExportCreate, ExportFilter
from recorder.runtime import Runtime
from recorder.tenant import Tenant

_FIELDS = 5
# 29 February comes every four years, and once in eight.
_LOOKS_BACK = (timedelta(hours=1), timedelta(days=1), timedelta(days=32), timedelta(days=9 * 366))


class InvalidCron(Invalid):
    """No time can be read from the five fields, or the zone is unknown."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"{why} A cron line has five fields, minute hour day month weekday, such as `0 6 * * 1-5`."
        )


@dataclass(frozen=True)
class Cron:
    """The instants at which local clocks match a line; times that clocks skip or repeat, as Debian's cron."""

    line: str
    zone: ZoneInfo

    def next_after(self, moment: datetime) -> datetime:
        """The first instant after this one, UTC.

        Raises:
            InvalidCron: if none comes in fifty years.
        """
        try:
            return next(CronSim(self.line, moment.astimezone(self.zone))).astimezone(UTC)
        except StopIteration as error:
            raise InvalidCron("This day never comes.") from error

    def last_until(self, moment: datetime) -> datetime | None:
        """The last instant up to this one, UTC; None if there was none for nine years.

        Read forwards, as the ticks were: backwards, an hour that comes twice names other instants.
        """
        for reach in _LOOKS_BACK:
            found, following = None, self.next_after(moment - reach)
            while following <= moment:
                found, following = following, self.next_after(following)
            if found is not None:
                return found
        return None


def read_cron(line: str, timezone: str) -> Cron:
    """The schedule that a cron line describes.

    Args:
        line: five fields of `*`, numbers, names of months and days, ranges, steps and lists of them.
        timezone: name of the zone whose clocks are meant, such as `Europe/Berlin`.

    Raises:
        InvalidCron: if there is none.
    """
    texts = line.upper().split()
    if len(texts) != _FIELDS:
        raise InvalidCron(f"This has {len(texts)} fields.")
    cron = Cron(" ".join(texts), _zone(timezone))
    try:
        cron.next_after(datetime(2024, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise InvalidCron(f"{error}.") from error
    return cron


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidCron("The time zone is unknown; give a name such as UTC or Europe/Berlin.") from error


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
    tenant: Tenant,
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
        workspace_id=tenant.workspace_id,
        mode=tenant.mode,
        name=body.tag,
        body=body.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"tag"}),
        cron=cron,
        timezone=timezone,
        next_at=read_cron(cron, timezone).next_after(now),
        created_at=now,
    )
    _try_out(runtime, row)
    with runtime.database.transaction(write=True) as db:
        if db.get(RecipeRow, key_of(row)) is not None:
            raise RecipeExists
        db.add(row)
        shown = {name: row.body[name] for name in ("workflow", "format", "destination")}
        details = {**shown, "cron": cron, "timezone": timezone, "mode": tenant.mode}
        record(db, origin, "recipe.create", resource_type="recipe", resource_id=row.name, details=details)
    return row


def remove_recipe(db: DbSession, tenant: Tenant, name: str, *, origin: Origin) -> None:
    """Make no more exports of this recipe; those it made stay.

    Raises:
        UnknownRecipe: if there is none.
    """
    db.delete(_find(db, tenant, name))
    record(
        db, origin, "recipe.delete", resource_type="recipe", resource_id=name, details={"mode": tenant.mode}
    )


def list_recipes(
    db: DbSession, *, workspace_id: str | None = None, mode: str | None = None
) -> list[ListedRecipe]:
    """Recipes with their last exports, by workspace, mode and name."""
    statement = select(RecipeRow)
    if workspace_id is not None:
        statement = statement.where(RecipeRow.workspace_id == workspace_id)
    if mode is not None:
        statement = statement.where(RecipeRow.mode == mode)
    recipes = sorted(db.exec(statement), key=key_of)
    return [ListedRecipe(one, last_export(db, one)) for one in recipes]


def run_recipe(runtime: Runtime, tenant: Tenant, name: str, *, origin: Origin) -> ExportRow:
    """Make the recipe's export at once, beside its ticks.

    Raises:
        UnknownRecipe: if there is none.
        RecorderError: what `create_export` raises.
    """
    with runtime.database.transaction(write=False) as db:
        draft = draft_at(_find(db, tenant, name), clock.now())
    probe_destination(draft, runtime.settings)
    with runtime.database.transaction(write=True) as db:
        return make_export(db, runtime, _find(db, tenant, name), draft, origin)


def make_export(
    db: DbSession, runtime: Runtime, recipe: RecipeRow, draft: ExportRow, origin: Origin
) -> ExportRow:
    """Queue the export that the recipe asks for."""
    export = store_export(db, runtime.settings, draft, origin=origin)
    recipe.last_export_id, recipe.last_error = export.id, None
    db.add(recipe)
    return export


def draft_at(recipe: RecipeRow, moment: datetime) -> ExportRow:
    """The export that the recipe asks for at this moment; relative times count from it, without a gap."""
    body = read_request({**recipe.body, "tag": recipe.name})
    asked = body.filter or ExportFilter()
    times = {"until": clock.to_iso(moment)}
    for name in ("since", "until"):
        text = getattr(asked, name)
        if text is not None:
            times[name] = clock.to_iso(clock.resolve_time(text, now=moment, name=name))
    body = body.model_copy(update={"filter": asked.model_copy(update=times)})
    return draft_export(recipe.tenant, body)


def _try_out(runtime: Runtime, row: RecipeRow) -> None:
    """See that the export would be accepted if it were due."""
    draft = draft_at(row, row.created_at)
    with runtime.database.transaction(write=False) as db, suppress(QuotaExceeded):
        require_known(db, draft)
    probe_destination(draft, runtime.settings)


def _find(db: DbSession, tenant: Tenant, name: str) -> RecipeRow:
    row = db.get(RecipeRow, (tenant.workspace_id, tenant.mode, name))
    if row is None:
        raise UnknownRecipe
    return row


def last_export(db: DbSession, recipe: RecipeRow) -> ExportRow | None:
    """The export that it made last."""
    return None if recipe.last_export_id is None else db.get(ExportRow, recipe.last_export_id)


def key_of(recipe: RecipeRow) -> tuple[str, str, str]:
    """The primary key of its row."""
    return recipe.workspace_id, recipe.mode, recipe.name
