"""Inventory of recorded content: every location of a deployment that holds it, and the part that removes it.

A test walks the tables, the lake's schemas and the stores, and fails for a column or kind that is not listed.
Contract §7.
"""

from dataclasses import dataclass
from typing import Literal

Remover = Literal[
    "content", "lake", "graph", "exports", "retention", "webhooks", "erasure", "start", "operator", "kept"
]


@dataclass(frozen=True)
class Holding:
    """A location with recorded content."""

    #: Table, kind of lake table, prefix of objects, or name of the location.
    name: str
    #: Columns with content that a client recorded or a person wrote; empty for a location as a whole.
    columns: tuple[str, ...]
    #: Part that removes the content of a purged session: `start` at the next start of the service; `operator`
    #: and `kept` are out of its reach.
    remover: Remover
    note: str = ""
    #: Its files below the data folder, unless a setting leads elsewhere; `*` stands for folders too.
    files: tuple[str, ...] = ()


#: Tables of the database. Columns with ids, numbers, times and settings alone are not content.
TABLES = (
    Holding("sessions", ("actor_id", "event_mark", "seal_error_message"), "content"),
    Holding("session_metadata", ("metadata", "source_hashes"), "content"),
    Holding("session_statuses", (), "content"),
    Holding("event_batches", ("payload", "first_id"), "content"),
    Holding("event_keys", ("event_id", "digest"), "content"),
    Holding("batch_keys", ("answer", "body_digest"), "content"),
    Holding("frames", ("frame_id", "url", "active_rect", "masked_rects", "digest", "sha256"), "content"),
    Holding(
        "replays",
        (
            "spec",
            "anchor_event",
            "input_names",
            "input_values",
            "decisions",
            "summary",
            "divergence",
            "result_key",
        ),
        "content",
        "inputs encrypted, until the replay ends",
    ),
    Holding(
        "recoveries",
        (
            "failure_tag",
            "point_session_id",
            "candidates",
            "recovery_point",
            "input_names",
            "input_values",
            "policy",
        ),
        "content",
        "ids of events and frames; those of other sessions, and inputs encrypted, until the recovery ends",
    ),
    Holding("replay_steps", ("event_id", "locator", "frame_id", "delivery"), "content"),
    Holding("tags", ("name", "data", "event_id", "frame_id"), "content"),
    Holding("seal_portions", ("state",), "content"),
    Holding("sweeps", ("session_id",), "content", "ids of sessions, until their hot rows are deleted"),
    Holding("outbox", ("data", "body"), "content"),
    Holding("webhook_deliveries", ("request_url", "request_headers", "response"), "content"),
    Holding("idempotency_keys", ("answer", "body_digest"), "content"),
    Holding("seal_batches", ("session_ids",), "lake", "ids of sessions, until the batch is done"),
    Holding("holds", ("value",), "content", "the id of a held session, or the operator's name of a tag"),
    Holding("purges", ("session_id", "dates"), "retention", "id, cause and time, as long as the audit log"),
    Holding(
        "erasures", ("subject", "subject_hash", "open_key"), "erasure", "encrypted, until the erasure ends"
    ),
    Holding("erasure_nodes", ("node_id",), "erasure", "nodes that sessions visited, until their purges end"),
    Holding("graph_session_paths", ("session_id", "step_ms"), "graph"),
    Holding("graph_labels", ("session_id", "text", "actor"), "graph", "texts of pages that name nodes"),
    Holding("graph_nodes", ("label",), "kept", "action and kind of element, or the name of an activity"),
    Holding("graph_nodes", ("features",), "kept", "hashes of screens"),
    Holding("graph_micro_states", ("features",), "kept", "hashes of screens"),
    Holding("graph_traces", ("steps",), "kept", "hashes of steps"),
    Holding("drift_alarms", ("data",), "graph", "labels as they were; unshared texts are removed"),
    Holding("exports", ("spec", "lineage"), "kept", "ids of excluded sessions"),
    Holding("export_sessions", ("session_id",), "exports", "which session is in which export"),
    Holding("export_recipes", ("body",), "kept", "ids of excluded sessions"),
    Holding("audit_entries", ("details",), "retention", "ids and settings, never recorded content"),
)
#: Tables without recorded content: settings, keys, counters, structure and state of the service.
WITHOUT_CONTENT = frozenset(
    {
        "audit_hashes",
        "audit_heads",
        "deployment",
        "drift_states",
        "export_shards",
        "export_workflows",
        "graph_paths",
        "graph_pauses",
        "graph_variants",
        "graph_versions",
        "keys",
        "leases",
        "mask_replacements",
        "orchestration_status",
        "seal_counters",
        "usage",
        "webhook_secrets",
        "webhooks",
        "workflows",
        "workspaces",
    }
)
#: Kinds of lake tables, with their old files and logs.
LAKE = (
    Holding("events", (), "lake", files=("lake/*/*/events/*",)),
    Holding("frames", (), "lake", files=("lake/*/*/frames/*",)),
    Holding("sessions", (), "lake", files=("lake/*/*/sessions/*",)),
    Holding("steps", (), "lake", files=("lake/*/*/steps/*",)),
)
#: Prefixes of objects in the blob store.
OBJECTS = (
    Holding(
        "frames/",
        (),
        "content",
        "pictures and snapshots; orphans and temporaries after a day",
        files=("blobs/frames/*", "cold/frames/*"),
    ),
    Holding("sealing/", (), "content", "progress of large sessions", files=("blobs/sealing/*",)),
    Holding(
        "exports/", (), "exports", "plans: ids, outcomes and digests of sessions", files=("blobs/exports/*",)
    ),
    Holding("health/", (), "kept", "probes without content", files=("blobs/health/*", "cold/health/*")),
)
#: Other locations.
OTHER_HOLDINGS = (
    Holding(
        "hosted exports",
        (),
        "exports",
        "rewritten; deleted 30 days after completion",
        files=("exports/wsp_*",),
    ),
    Holding("local exports", (), "exports", "rewritten while the manifest is ours; in the operator's folder"),
    Holding("exports elsewhere", (), "operator", "the client's buckets, counted by an erasure"),
    Holding("webhook receivers", (), "operator", "counted as deliveries of an erasure"),
    Holding(
        "SQLite's write-ahead log",
        (),
        "content",
        "truncated at the end of a purge",
        files=("recorder.db-wal", "recorder.db-shm"),
    ),
    Holding("SQLite's free pages", (), "content", "overwritten: secure_delete", files=("recorder.db",)),
    Holding("SQLite's page gaps", (), "erasure", "the file is rewritten before an erasure ends, and daily"),
    Holding("PostgreSQL's dead rows", (), "erasure", "tables are rewritten before an erasure ends"),
    Holding("PostgreSQL's WAL and replicas", (), "operator", "rotation"),
    Holding(
        "Dagster's records",
        (),
        "retention",
        "deleted after 30 days; stripped of texts after an erasure",
        files=(
            "dagster/history/*",
            "dagster/schedules/*",
            "dagster/__repository__/*",
            "dagster/*-*-*-*-*/*",
        ),
    ),
    Holding("service logs", (), "operator", "ids and codes, never recorded content", files=("logs/*",)),
    Holding(
        "temporary files",
        (),
        "start",
        "in tmp; of killed processes, until the service starts again",
        files=("tmp/*",),
    ),
    Holding("caches of graphs in processes", (), "graph", "loaded again after a version of the kind purge"),
    Holding("backups", (), "operator", "to be deleted within 30 days"),
)
#: Files below the data folder without recorded content: secret, locations and times of backups, marks of the
#: deployment in its stores, and the state of processes of the service.
FILES_WITHOUT_CONTENT = (
    "secret",
    "backups.json",
    "dagster-login/*",
    "run/*",
    "blobs/deployment.json",
    "cold/deployment.json",
    "exports/deployment.json",
    "lake/deployment/*",
    "dagster/code.sock",
    "dagster/matplotlib/*",
    "dagster/workspace.yaml",
)
#: Statistics of PostgreSQL, which quote values of columns.
STATISTICS = "pg_statistic"
#: SQLite's file as a whole: where it moves rows between pages, it leaves copies in the gaps of the old ones.
SQLITE_FILE = "sqlite_file"


def list_inventory_tables_to_rewrite(*, is_sqlite: bool) -> list[str]:
    """Return the tables that an erasure waits for, in the order of their rewrites; SQLite's is the file.

    PostgreSQL's statistics come last: each rewrite of another table samples them again.
    """
    if is_sqlite:
        return [SQLITE_FILE]
    return [*dict.fromkeys(holding.name for holding in TABLES), STATISTICS]
