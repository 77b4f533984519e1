"""Recipes: saved requests that become one export at each tick. docs/recipes.md."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import col, select

from recorder import clock, limits
from recorder.access.workspaces import create_workspace
from recorder.audit.log import Origin
from recorder.errors import DestinationNotAllowed, InvalidRange, NotFound, RecorderError
from recorder.exports.requests.cron import InvalidCron, parse_cron
from recorder.exports.requests.recipe_ticks import queue_due_recipe_ticks
from recorder.exports.requests.recipes import (
    InvalidRecipe,
    ListedRecipe,
    RecipeExists,
    UnknownRecipe,
    add_recipe,
    list_recipes,
    read_recipe_request,
    remove_recipe,
    run_recipe,
)
from recorder.models.export import ExportRow, RecipeRow
from recorder.models.operations import AuditRow
from recorder.models.workspace import WorkspaceRow
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.support.databases import create_database
from tests.support.sealed_sessions import Recording, make_runtime, make_settings, seal

_BODY = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}


class Kitchen:
    """A deployment with a workspace in which recipes are followed."""

    def __init__(self, runtime: Runtime, name: str = "acme") -> None:
        self.runtime = runtime
        with runtime.database.transaction(write=True) as db:
            made = create_workspace(db, name, region="us", secret=b"tests", tier="unlimited")
        self.workspace_id = made.workspace_id
        self.origin = Origin.operator(made.workspace_id)
        seal(runtime, [Recording(), Recording(workflow="login")], workspace_id=made.workspace_id)

    def add(
        self, name: str = "nightly", *, cron: str = "0 6 * * *", zone: str = "UTC", **body: Any
    ) -> RecipeRow:
        wanted = read_recipe_request({**_BODY, "tag": name, **body})
        return add_recipe(
            self.runtime,
            Tenant(self.workspace_id, "live"),
            wanted,
            cron=cron,
            timezone=zone,
            origin=self.origin,
        )

    def make_due(self, name: str = "nightly", *, ago: timedelta = timedelta(days=3)) -> None:
        """Move the clock past the due time without a tick."""
        with self.runtime.database.transaction(write=True) as db:
            row = db.get_one(RecipeRow, (self.workspace_id, "live", name))
            row.next_at -= ago
            row.created_at -= ago
            row.last_at = row.last_at and row.last_at - ago

    def follow(self, **options: Any) -> list[ListedRecipe]:
        return list(queue_due_recipe_ticks(self.runtime, **options))

    def listed(self) -> dict[str, ListedRecipe]:
        with self.runtime.database.transaction(write=False) as db:
            return {recipe.recipe.name: recipe for recipe in list_recipes(db)}

    def exports(self) -> list[ExportRow]:
        with self.runtime.database.transaction(write=False) as db:
            return list(db.exec(select(ExportRow)))

    def actions(self) -> list[tuple[str, str, str]]:
        with self.runtime.database.transaction(write=False) as db:
            rows = db.exec(select(AuditRow).order_by(col(AuditRow.number))).all()
        return [(row.action, row.resource_id, row.actor_type) for row in rows]


@pytest.fixture
def kitchen(tmp_path: Path) -> Iterator[Kitchen]:
    runtime = make_runtime(tmp_path)
    yield Kitchen(runtime)
    runtime.close()


@pytest.fixture(scope="module")
def spotless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    """Yield a deployment in which no garbage is ever kept."""
    runtime = make_runtime(tmp_path_factory.mktemp("spotless"))
    yield Kitchen(runtime)
    runtime.close()


def test_a_recipe_waits_for_its_first_tick(kitchen: Kitchen) -> None:
    row = kitchen.add(cron="0 6 * * *", zone="Asia/Tokyo")
    assert row.next_at > clock.now() and row.next_at.astimezone(UTC).hour == 21
    assert kitchen.follow() == []
    assert kitchen.exports() == []


def test_a_tick_makes_the_export_that_was_asked_for(kitchen: Kitchen) -> None:
    kitchen.add(
        format="jsonl",
        workflow=["login", "checkout"],
        split={"by": "actor", "test": 0.3},
        filter={"outcome": "success"},
    )
    kitchen.make_due()
    [taken] = kitchen.follow()
    [export] = kitchen.exports()
    assert (export.tag, export.dataset, export.format, export.status) == (
        "nightly",
        "nightly",
        "jsonl",
        "queued",
    )
    assert (export.spec["workflow"], export.spec["filter"]["outcome"]) == (["login", "checkout"], "success")
    assert (export.spec["split"]["by"], export.spec["split"]["test"]) == ("actor", 0.3)
    assert (
        taken.export is not None
        and taken.export.id == export.id == kitchen.listed()["nightly"].recipe.last_export_id
    )


def test_times_are_counted_from_the_tick_so_that_windows_meet(kitchen: Kitchen) -> None:
    kitchen.add(filter={"since": "1d"})
    kitchen.make_due(ago=timedelta(days=1))
    [taken] = kitchen.follow()
    filters = kitchen.exports()[0].spec["filter"]
    assert taken.recipe.last_at is not None
    assert filters["until"] == clock.to_iso(taken.recipe.last_at)
    assert filters["since"] == clock.to_iso(taken.recipe.last_at - timedelta(days=1))


def test_missed_ticks_come_to_one_export_that_of_the_last(kitchen: Kitchen) -> None:
    kitchen.add(cron="*/5 * * * *")
    kitchen.make_due(ago=timedelta(days=30))
    assert len(kitchen.follow()) == 1
    assert kitchen.follow() == []
    row = kitchen.listed()["nightly"].recipe
    assert row.last_at is not None and row.next_at - row.last_at == timedelta(minutes=5)
    assert len(kitchen.exports()) == 1


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_daemons_that_look_at_once_make_one_export(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    chosen = {}
    if engine == "postgresql":
        chosen = {"database_url": create_database(request.getfixturevalue("postgres"))}
    settings = make_settings(tmp_path, **chosen)
    daemons = [Runtime.open(settings) for _ in range(4)]
    kitchen = Kitchen(daemons[0])
    for number in range(3):
        kitchen.add(f"recipe {number}")
        kitchen.make_due(f"recipe {number}")
    threads = [
        threading.Thread(target=lambda instance=daemon: list(queue_due_recipe_ticks(instance)))
        for daemon in daemons
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(row.dataset for row in kitchen.exports()) == ["recipe 0", "recipe 1", "recipe 2"]
    for daemon in daemons:
        daemon.close()


def test_a_recipe_that_fails_stops_no_other_and_says_so(kitchen: Kitchen) -> None:
    root = kitchen.runtime.settings.local_export_root
    assert root is not None
    kitchen.add("broken", destination={"kind": "local", "path": "gone"})
    kitchen.add("sound")
    root.mkdir(exist_ok=True)
    (root / "gone").symlink_to("/")
    for name in ("broken", "sound"):
        kitchen.make_due(name)
    kitchen.follow()
    listed = kitchen.listed()
    assert [row.dataset for row in kitchen.exports()] == ["sound"]
    assert listed["broken"].error is not None and listed["broken"].error["code"] == "destination_not_allowed"
    assert listed["broken"].recipe.next_at > clock.now()
    assert listed["sound"].error is None
    assert kitchen.follow() == []


def test_a_recipe_whose_time_zone_is_gone_stops_no_other_and_is_tried_again_later(kitchen: Kitchen) -> None:
    for name in ("broken", "sound"):
        kitchen.add(name)
        kitchen.make_due(name)
    with kitchen.runtime.database.transaction(write=True) as db:
        db.get_one(RecipeRow, (kitchen.workspace_id, "live", "broken")).timezone = "US/Atlantis"
    kitchen.follow()
    broken = kitchen.listed()["broken"]
    assert [row.dataset for row in kitchen.exports()] == ["sound"]
    assert broken.error is not None and broken.error["code"] == "validation_failed"
    assert broken.recipe.next_at > clock.now()
    assert kitchen.follow() == []


def test_a_recipe_that_works_again_has_no_error(kitchen: Kitchen) -> None:
    kitchen.add()
    with kitchen.runtime.database.transaction(write=True) as db:
        row = db.get_one(RecipeRow, (kitchen.workspace_id, "live", "nightly"))
        row.body = {**row.body, "workflow": ["vanished"]}
    kitchen.make_due()
    kitchen.follow()
    error = kitchen.listed()["nightly"].error
    assert error is not None and error["code"] == "not_found"
    with kitchen.runtime.database.transaction(write=True) as db:
        row = db.get_one(RecipeRow, (kitchen.workspace_id, "live", "nightly"))
        row.body = {**row.body, "workflow": ["login"]}
    kitchen.make_due()
    kitchen.follow()
    assert kitchen.listed()["nightly"].error is None


def test_a_store_that_is_away_leaves_the_tick_for_the_next_look(tmp_path: Path) -> None:
    folder = tmp_path / "hosted"
    runtime = make_runtime(tmp_path, export_url=str(folder))
    kitchen = Kitchen(runtime)
    kitchen.add()
    kitchen.make_due()
    folder.rename(tmp_path / "away")
    folder.write_text("no folder")
    assert [item.error and item.error["code"] for item in kitchen.follow()] == ["unavailable"]
    folder.unlink()
    (tmp_path / "away").rename(folder)
    [taken] = kitchen.follow()
    assert taken.error is None and len(kitchen.exports()) == 1
    runtime.close()


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_recipes_whose_store_is_away_keep_no_other_workspace_waiting(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "hosted"
    chosen = {"export_url": str(folder)}
    if engine == "postgresql":
        chosen["database_url"] = create_database(request.getfixturevalue("postgres"))
    runtime = make_runtime(tmp_path, **chosen)
    ours, theirs = Kitchen(runtime), Kitchen(runtime, "other")
    for name in ("a", "b", "c"):
        ours.add(name)
        ours.make_due(name, ago=timedelta(days=30))
    for name in ("x", "y"):
        theirs.add(name, destination={"kind": "local", "path": "out"})
        theirs.make_due(name)
    folder.rename(tmp_path / "away")
    folder.write_text("no folder")
    # As if each took so long that nothing else is tried in the same tick.
    tried = [
        (item.recipe.name, item.error and item.error["code"])
        for _ in range(6)
        for item in ours.follow(most_s=0)
    ]
    away = "unavailable"
    assert tried == [("a", away), ("x", None), ("y", None), ("b", away), ("c", away), ("a", away)]
    runtime.close()


def test_a_tick_beyond_the_limit_of_open_exports_is_an_error_of_its_recipe(
    kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch
) -> None:
    kitchen.add()
    kitchen.make_due()
    monkeypatch.setattr(limits, "OPEN_EXPORTS", 0)
    [refused] = kitchen.follow()
    assert refused.error is not None and refused.error["code"] == "limit_reached"
    assert kitchen.add("another").name == "another"
    monkeypatch.undo()
    kitchen.make_due()
    assert [item.error for item in kitchen.follow()] == [None]


def test_the_error_of_an_export_is_that_of_its_recipe(kitchen: Kitchen) -> None:
    kitchen.add()
    kitchen.make_due()
    [taken] = kitchen.follow()
    assert taken.export is not None
    with kitchen.runtime.database.transaction(write=True) as db:
        row = db.get_one(ExportRow, taken.export.id)
        row.status, row.error = "failed", {"code": "rows_missing", "message": "…"}
    assert kitchen.listed()["nightly"].error == {"code": "rows_missing", "message": "…"}


def test_a_recipe_is_followed_at_once_beside_its_ticks(kitchen: Kitchen) -> None:
    before = kitchen.add().next_at
    export = run_recipe(
        kitchen.runtime, Tenant(kitchen.workspace_id, "live"), "nightly", origin=kitchen.origin
    )
    listed = kitchen.listed()["nightly"]
    assert (listed.recipe.next_at, listed.recipe.last_export_id) == (before, export.id)


def test_a_suspended_workspace_gets_no_exports(kitchen: Kitchen) -> None:
    kitchen.add()
    kitchen.make_due()
    with kitchen.runtime.database.transaction(write=True) as db:
        db.get_one(WorkspaceRow, kitchen.workspace_id).status = "suspended"
    assert kitchen.follow() == []


def test_a_removed_recipe_makes_no_more_exports(kitchen: Kitchen) -> None:
    kitchen.add()
    kitchen.make_due()
    with kitchen.runtime.database.transaction(write=True) as db:
        remove_recipe(db, Tenant(kitchen.workspace_id, "live"), "nightly", origin=kitchen.origin)
    assert kitchen.follow() == []
    with (
        pytest.raises(UnknownRecipe, match="recipes list"),
        kitchen.runtime.database.transaction(write=True) as db,
    ):
        remove_recipe(db, Tenant(kitchen.workspace_id, "live"), "nightly", origin=kitchen.origin)


def test_adding_removing_and_following_are_in_the_audit_log(kitchen: Kitchen) -> None:
    kitchen.add()
    kitchen.make_due()
    [taken] = kitchen.follow()
    with kitchen.runtime.database.transaction(write=True) as db:
        remove_recipe(db, Tenant(kitchen.workspace_id, "live"), "nightly", origin=kitchen.origin)
    assert taken.export is not None
    assert kitchen.actions() == [
        ("recipe.create", "nightly", "operator"),
        ("export.create", taken.export.id, "system"),
        ("recipe.delete", "nightly", "operator"),
    ]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"cron": "0 6 * *"}, InvalidCron),
        ({"zone": "Mars/Olympus"}, InvalidCron),
        ({"workflow": "unknown"}, NotFound),
        ({"format": "csv"}, InvalidRecipe),
        ({"filter": {"colour": "red"}}, InvalidRecipe),
        ({"filter": {"since": "1d", "until": "2d"}}, InvalidRange),
        ({"filter": {"until": "2999-01-01T00:00:00Z"}}, InvalidRange),
        ({"filter": {"since": "yesterday"}}, RecorderError),
        ({"destination": {"kind": "local", "path": "/etc"}}, DestinationNotAllowed),
        ({"destination": {"kind": "ftp"}}, InvalidRecipe),
        ({"name": "two\nlines"}, InvalidRecipe),
    ],
)
def test_a_recipe_that_could_never_be_followed_is_refused(
    spotless: Kitchen, wrong: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        spotless.add(**wrong)
    assert (spotless.listed(), spotless.exports(), spotless.actions()) == ({}, [], [])


def test_a_name_is_taken_once(kitchen: Kitchen) -> None:
    kitchen.add()
    with pytest.raises(RecipeExists, match="choose another"):
        kitchen.add(workflow="login")


def test_a_cron_line_without_five_fields_is_told_how_many_it_has() -> None:
    with pytest.raises(InvalidCron, match=r"^This line has 1 field\. A cron line has five fields"):
        parse_cron("nonsense", "UTC")


def test_an_unknown_time_zone_is_refused_without_words_about_the_line() -> None:
    with pytest.raises(InvalidCron, match=r"^The time zone is unknown; give a name .* Europe/Berlin\.$"):
        parse_cron("0 6 * * *", "Mars/Olympus")


def test_what_is_wrong_is_told_in_a_sentence_without_the_value() -> None:
    with pytest.raises(InvalidRecipe, match="filter/min_duration_ms") as raised:
        read_recipe_request({**_BODY, "tag": "x", "filter": {"min_duration_ms": "hush"}})
    assert "hush" not in str(raised.value)


def test_the_first_tick_follows_the_clocks_of_the_zone(kitchen: Kitchen) -> None:
    row = kitchen.add(cron="0 6 1 7 *", zone="Europe/Berlin")
    assert row.next_at == datetime(row.next_at.year, 7, 1, 4, tzinfo=UTC)
