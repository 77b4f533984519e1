"""The list of holdings: no table, column, lake kind or prefix of objects is missing from it. Contract §7."""

import re
from collections import defaultdict

import sqlalchemy as sa
from sqlmodel.sql.sqltypes import UTCDateTime

from recorder.governance import content_inventory
from recorder.governance.purging.session_content import list_content_folders
from recorder.models.tables import METADATA
from recorder.storage.lake_schemas import LAYOUTS
from tests.support.data_folders import group_files_by_holding
from tests.support.erasure_canaries import (
    dagster_deployment,
    record_people,
    show_in_dagster,
    write_exports,
)
from tests.support.factories import Caller
from tests.support.project_texts import ROOT
from tests.support.purges import recorded_canary

IDS = "ids and keys of objects that the service gives"
WORDS = "words of the service: states, kinds, causes"
SETTINGS = "settings and names that an administrator or operator writes"
DIGESTS = "digests and ciphertexts without content"
TEXTS = "sentences of the service about its own work"
NUMBERS = "numbers and ids of nodes, names of parts of the service"
SCOPE = "workspace, mode and name of the workflow"
#: Columns with text that hold nothing recorded, by table, with the reason.
PLAIN: dict[str, dict[str, str]] = {
    "audit_entries": {
        IDS: "id workspace_id resource_id request_id",
        WORDS: "mode actor_type action resource_type outcome",
        SETTINGS: "actor_id ip",
        DIGESTS: "prev_hash hash",
    },
    "audit_hashes": {IDS: "workspace_id", DIGESTS: "prev_hash hash"},
    "audit_heads": {IDS: "workspace_id", DIGESTS: "hash"},
    "batch_keys": {IDS: "session_id", WORDS: "kind", DIGESTS: "batch_key"},
    "deployment": {SETTINGS: "region", DIGESTS: "secret_check"},
    "drift_alarms": {SCOPE: "workspace_id mode workflow", WORDS: "type", IDS: "subject_id event_id"},
    "drift_states": {SCOPE: "workspace_id mode workflow", NUMBERS: "inherited changes"},
    "erasure_nodes": {IDS: "erasure_id"},
    "erasures": {
        IDS: "id workspace_id newest_id searched_id exports",
        WORDS: "mode status searched_mode stale_tables",
        NUMBERS: "counts",
    },
    "event_batches": {IDS: "session_id"},
    "event_keys": {IDS: "session_id"},
    "export_recipes": {
        IDS: "workspace_id last_export_id",
        WORDS: "mode",
        SETTINGS: "name cron timezone",
        TEXTS: "last_error",
    },
    "export_sessions": {IDS: "export_id"},
    "export_shards": {
        IDS: "export_id path reused_from",
        WORDS: "kind",
        SCOPE: "workflow",
        DIGESTS: "content_key sha256",
    },
    "export_workflows": {IDS: "export_id", SCOPE: "workspace_id mode workflow"},
    "exports": {
        IDS: "id workspace_id plan_key request_id",
        WORDS: "mode status format reserved_period",
        SETTINGS: "destination tag dataset",
        TEXTS: "last_error error",
        DIGESTS: "plan_sha256 series_sha256 row_set_sha256 manifest_sha256 next_manifest_sha256",
    },
    "frames": {IDS: "session_id object dom_object", WORDS: "content_type"},
    "graph_labels": {SCOPE: "workspace_id mode workflow"},
    "graph_micro_states": {SCOPE: "workspace_id mode workflow"},
    "graph_nodes": {SCOPE: "workspace_id mode workflow", IDS: "node_id", WORDS: "kind"},
    "graph_paths": {SCOPE: "workspace_id mode workflow", IDS: "path_id", NUMBERS: "nodes"},
    "graph_pauses": {SCOPE: "workspace_id mode workflow"},
    "graph_session_paths": {
        SCOPE: "workspace_id mode workflow",
        WORDS: "outcome earlier_outcome actor_kind",
    },
    "graph_traces": {SCOPE: "workspace_id mode workflow"},
    "graph_variants": {SCOPE: "workspace_id mode workflow", NUMBERS: "nodes"},
    "graph_versions": {SCOPE: "workspace_id mode workflow", WORDS: "kind", NUMBERS: "writer params"},
    "holds": {IDS: "workspace_id", WORDS: "kind"},
    "idempotency_keys": {
        IDS: "workspace_id resource_id",
        WORDS: "mode method path",
        DIGESTS: "key",
    },
    "keys": {
        IDS: "id workspace_id",
        WORDS: "mode scope",
        SETTINGS: "label",
        DIGESTS: "key_hash last4",
    },
    "leases": {IDS: "name owner"},
    "mask_replacements": {IDS: "workspace_id", SETTINGS: "replacement"},
    "orchestration_status": {WORDS: "kind name state"},
    "outbox": {IDS: "id workspace_id subject_id request_id", WORDS: "mode type"},
    "purges": {SCOPE: "workspace_id mode workflow", WORDS: "cause step", IDS: "erasure_id"},
    "recoveries": {
        IDS: "id session_id replay_ids request_id",
        SCOPE: "workspace_id mode workflow",
        WORDS: "sandbox status evidence reason",
    },
    "replay_steps": {IDS: "replay_id", WORDS: "outcome"},
    "replays": {
        IDS: "id session_id against_session_id result_session_id cause request_id",
        SCOPE: "workspace_id mode workflow",
        WORDS: "sandbox kind status",
        TEXTS: "error",
    },
    "seal_batches": {IDS: "workspace_id", WORDS: "mode state", TEXTS: "last_error"},
    "seal_counters": {IDS: "workspace_id", WORDS: "mode"},
    "seal_portions": {IDS: "session_id", NUMBERS: "date"},
    "session_metadata": {IDS: "session_id"},
    "session_statuses": {IDS: "session_id", WORDS: "status"},
    "sessions": {
        IDS: "id",
        SCOPE: "workspace_id mode workflow",
        WORDS: "status actor_kind origin outcome seal_error_code",
        NUMBERS: "lake_date",
    },
    "tags": {IDS: "id session_id workspace_id", WORDS: "mode"},
    "usage": {IDS: "workspace_id", NUMBERS: "period"},
    "webhook_deliveries": {
        IDS: "id webhook_id event_id redelivery_of",
        WORDS: "event_type trigger status error",
    },
    "webhook_secrets": {IDS: "webhook_id key_id", DIGESTS: "ciphertext"},
    "webhooks": {IDS: "id workspace_id", WORDS: "mode events", SETTINGS: "url description"},
    "workflows": {SCOPE: "workspace_id mode workflow", SETTINGS: "outcome_rules tags masking"},
    "workspaces": {
        IDS: "id",
        WORDS: "region status tier",
        SETTINGS: "name masking live_hosts",
    },
}
#: Types of columns that hold no text.
_WITHOUT_TEXT = (sa.Integer, sa.Float, sa.Boolean, UTCDateTime)


def is_text(column: sa.Column[object]) -> bool:
    """Return whether a column can hold content of a client."""
    return not isinstance(column.type, _WITHOUT_TEXT)


def test_every_table_is_listed_once() -> None:
    listed = {holding.name for holding in content_inventory.TABLES}
    tables = set(METADATA.tables)
    assert listed | content_inventory.WITHOUT_CONTENT == tables
    assert listed & content_inventory.WITHOUT_CONTENT == set()


def test_every_column_with_text_is_listed_as_content_or_as_plain_with_a_reason() -> None:
    content: defaultdict[str, list[str]] = defaultdict(list)
    for holding in content_inventory.TABLES:
        content[holding.name] += holding.columns
    for name, table in METADATA.tables.items():
        plain = " ".join(PLAIN.get(name, {}).values()).split()
        texts = [column.name for column in table.columns if is_text(column)]
        # Each column once, and none that no longer exists.
        assert sorted([*plain, *(text for text in content[name] if text in texts)]) == sorted(texts), name
        assert set(content[name]) <= {column.name for column in table.columns}, name


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


def test_every_file_of_a_used_data_folder_is_at_a_listed_place(caller: Caller) -> None:
    # Events, frames, archives, exports, replays and runs of Dagster leave files.
    with dagster_deployment(caller) as deployment:
        for people in record_people(caller, subjects=1):
            show_in_dagster(deployment, people)
        write_exports(caller)
        places = group_files_by_holding(caller.service.runtime.settings.data_dir, local_exports="local/*")
    is_sqlite = caller.service.runtime.database.is_sqlite
    kinds = {f"lake {holding.name}" for holding in content_inventory.LAKE}
    used = {"frames/", "sealing/", "exports/", "hosted exports", "local exports", "Dagster's records", ""}
    assert kinds | used <= places.keys()
    assert any(name.startswith("cold/") for name in places["frames/"])
    # Only SQLite's files, logs of processes and temporary files may be there or not.
    optional = {"SQLite's write-ahead log", "SQLite's free pages"} if is_sqlite else set()
    assert places.keys() - kinds - used <= optional | {"service logs", "temporary files", "health/"}
