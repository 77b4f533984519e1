"""The list of holdings: no table, column, lake kind or prefix of objects is missing from it. Contract §7."""

import re
from collections import defaultdict

import sqlalchemy as sa

from recorder.governance import content_inventory
from recorder.governance.purging.session_content import list_content_folders
from recorder.models.session import SessionRow
from recorder.models.tables import METADATA
from recorder.storage.lake_schemas import LAYOUTS
from tests.support.factories import Caller
from tests.support.project_texts import ROOT
from tests.support.purges import recorded_canary

#: Names of columns with ids, states and settings, whatever the table.
PLAIN = re.compile(
    r"(id|.*_id|mode|workspace_id|workflow|status|kind|type|name|path|method|key|batch_key|action|outcome|cause"
    r"|step|state|owner|origin|actor_type|actor_kind|resource_type|request_id|ip|content_type|object|dom_object"
    r"|prev_hash|hash|seal_error_code|lake_date|error|trigger|redelivery_of|format|tag|dataset|destination"
    r"|last_error|plan_key|.*_sha256|sha256|reserved_period|counts|searched_mode|writer|first_id|title)"
)


def is_text(column: sa.Column[object]) -> bool:
    """Return whether a column can hold content of a client."""
    # SQLModel's own string type is none of `sa.String`'s names here.
    return column.type.python_type in (str, bytes, dict, list)


def test_every_table_is_listed_once() -> None:
    listed = {holding.name for holding in content_inventory.TABLES}
    tables = set(METADATA.tables)
    assert listed | content_inventory.WITHOUT_CONTENT == tables
    assert listed & content_inventory.WITHOUT_CONTENT == set()


def test_every_column_that_can_hold_content_is_listed() -> None:
    columns: defaultdict[str, set[str]] = defaultdict(set)
    for holding in content_inventory.TABLES:
        columns[holding.name] |= set(holding.columns)
    for name, listed in columns.items():
        table = METADATA.tables[name]
        assert listed <= {column.name for column in table.columns}, name
        texts = {column.name for column in table.columns if is_text(column)}
        assert [text for text in sorted(texts - listed) if not PLAIN.fullmatch(text)] == [], name


def test_every_lake_kind_is_listed() -> None:
    assert {holding.name for holding in content_inventory.LAKE} == set(LAYOUTS)


def test_every_prefix_of_objects_is_listed(caller: Caller) -> None:
    recorded_canary(caller)
    listed = {holding.name for holding in content_inventory.OBJECTS}
    stored = {f"{key.split('/')[0]}/" for key in caller.service.runtime.blobs.keys("") if "/" in key}
    written = set()
    for path in (ROOT / "recorder").rglob("*.py"):
        written |= set(re.findall(r'f"([a-z]+/)\{[^"]*workspace_id', path.read_text()))
    assert stored <= listed and written <= listed
    assert {folder.split("/")[0] + "/" for folder in list_content_folders("w", "s")} == {
        "frames/",
        "sealing/",
    }


def test_a_used_data_folder_has_only_listed_parts(caller: Caller) -> None:
    recorded_canary(caller)
    folder = caller.service.runtime.settings.data_dir
    parts = {path.name.partition(".")[0] for path in folder.iterdir()}
    known = {"blobs", "cold", "lake", "exports", "local", "secret", "recorder", "logs", "dagster", "tmp", ""}
    assert parts <= known
    assert SessionRow.__tablename__ in {holding.name for holding in content_inventory.TABLES}
