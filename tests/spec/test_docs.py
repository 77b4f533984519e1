"""The documentation names what there is: addresses, fields, numbers, codes, settings, commands."""

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from api.fair_slots import DATABASE_SLOTS, WORK_SLOTS
from pipelines.definitions import defs
from recorder import limits
from recorder.access.rate_tiers import TIERS
from recorder.cli import app as command_line
from recorder.client import Client, SessionRecorder
from recorder.datasets import schemas
from recorder.event_types import EVENT_TYPES
from recorder.models.event import App, EventItem, Input, Target, Trace
from recorder.models.export import Export, ExportDifference, SessionDifference
from recorder.models.export_request import (
    ExportCreate,
    ExportFilter,
    FrameSampling,
    SplitRule,
)
from recorder.models.frame import Frame, FrameItem
from recorder.models.governance import Erasure, ErasureCreate
from recorder.models.limits import (
    BatchLimits,
    ByteLimits,
    Limits,
    ListLimits,
    RateLimit,
    StreamLimits,
    SurfaceLimits,
)
from recorder.models.memory import (
    ComparedSide,
    EdgeChange,
    MemoryComparison,
    MemoryPath,
    NodeChange,
    PathChange,
    RecoveryPoint,
    SimilarSearch,
)
from recorder.models.operations import AuditEntry
from recorder.models.recovery import Recovery, RecoveryCreate, RecoveryPlace, ScoredNode
from recorder.models.session import FramesSummary, Session, SessionCreate, Tag, TagCreate
from recorder.models.webhook import (
    Delivery,
    DeliveryRequest,
    DeliveryResponse,
    Webhook,
    WebhookCreate,
    WebhookCreated,
)
from recorder.models.workflow import OutcomeNames, Workflow, WorkflowGraph, WorkflowUpdate
from recorder.models.workspace import (
    Key,
    KeyCreate,
    KeyCreated,
    LiveReplay,
    Masking,
    MaskingPattern,
    Quota,
    Retention,
    Workspace,
    WorkspaceUpdate,
)
from recorder.webhooks.catalogue import EVENT_TYPES as WEBHOOK_TYPES
from recorder.webhooks.delivery_scheduling import MAX_ATTEMPTS
from tests.support.factories import Service
from tests.support.project_texts import ALL, PAGES, ROOT, SOURCES, calls, prose, table, text_of

FIELDS: dict[str, list[Any]] = {
    "sessions": [Session, SessionCreate, FramesSummary],
    "events": [EventItem, Target, Input, App, Trace],
    "frames": [Frame, FrameItem],
    "tags": [Tag, TagCreate],
    "masking": [Masking, MaskingPattern],
    "memory": [
        MemoryPath,
        RecoveryPoint,
        SimilarSearch,
        MemoryComparison,
        ComparedSide,
        PathChange,
        NodeChange,
        EdgeChange,
    ],
    "exports": [
        Export,
        ExportCreate,
        ExportFilter,
        FrameSampling,
        SplitRule,
        ExportDifference,
        SessionDifference,
    ],
    "webhooks": [
        Webhook,
        WebhookCreate,
        WebhookCreated,
        Delivery,
        DeliveryRequest,
        DeliveryResponse,
    ],
    "limits": [Limits, SurfaceLimits, RateLimit, StreamLimits, BatchLimits, ByteLimits, ListLimits],
    "audit": [AuditEntry],
    "keys": [Key, KeyCreate, KeyCreated],
    "workflows": [Workflow, WorkflowUpdate, WorkflowGraph, OutcomeNames],
    "workspaces": [Workspace, WorkspaceUpdate, Retention, LiveReplay],
    "quota": [Quota],
    "privacy": [Erasure, ErasureCreate],
    "recoveries": [Recovery, RecoveryCreate, RecoveryPlace, ScoredNode],
}
NUMBERS = {
    "sessions": [
        f"up to {limits.METADATA_BYTES:,} bytes",
        f"stop up to {limits.BATCH_STOP_IDS}",
        f"at most {limits.EMBEDDED_EVENTS:,}, with",
    ],
    "events": [f"1 to {limits.EVENTS_PER_BATCH} items", f"at most {limits.EVENT_BYTES // 1024} KiB each"],
    "frames": [
        f"1 to {limits.FRAMES_PER_BATCH} frames, {limits.FRAMES_REQUEST_BYTES // 1024**2} MiB a request",
        f"at most {limits.FRAME_BYTES // 1024**2} MiB and {limits.FRAME_PIXELS // 10**6} million pixels",
        f"at most {limits.DOM_BYTES // 1024**2} MiB",
    ],
    "tags": [
        f"1 to {limits.TAG_NAME_CHARACTERS} printable characters",
        f"up to {limits.TAG_DATA_BYTES // 1024} KiB",
    ],
    "masking": [
        f"at most {limits.MASKING_PATTERNS} of",
        f"of 1 to {limits.MASKING_PATTERN_CHARACTERS:,} characters",
        f"up to {limits.MASKING_REPLACEMENT_CHARACTERS} characters",
        f"more than {limits.MASKING_HITS} matches",
        f"at most {limits.MASKING_STATES:,} states together",
        f"an event {limits.EVENT_BYTES * limits.MASKING_GROWTH // 1024} KiB",
    ],
    "keys": [
        f"at most {limits.KEYS_PER_WORKSPACE:,} keys",
        f"1 to {limits.KEY_LABEL_CHARACTERS} printable characters",
    ],
    "workflows": [
        f"up to {limits.WORKFLOW_TAGS} words of your own",
        f"list of up to {limits.OUTCOME_NAMES};",
        f"`{limits.WORKFLOW_PATTERN}`",
        f"at most {limits.WORKFLOWS_PER_WORKSPACE:,} workflows",
    ],
    "workspaces": [
        f"| `retention.frames_days` | {limits.FRAMES_RETENTION_DAYS} | 1 to 3,650",
        f"| `retention.events_days` | {limits.EVENTS_RETENTION_DAYS} | 1 to 3,650",
        f"| `retention.audit_days` | {limits.AUDIT_RETENTION_DAYS} | 1 to 3,650",
        f"up to {limits.LIVE_HOSTS} host names",
    ],
    "interface": [
        f"within {limits.REQUEST_HEAD_SECONDS} seconds of the connection",
        f"within {limits.REQUEST_BODY_SECONDS} seconds more",
        f"at most {limits.REQUEST_HEAD_BYTES // 1024} KiB together, with",
        f"at most {limits.REQUEST_HEADERS} headers",
        f"{limits.REQUEST_HEADER_BYTES // 1024} KiB in the values of one header",
        f"{limits.REQUEST_ADDRESS_BYTES // 1024} KiB in the address",
        f"{limits.QUERY_PARAMETERS} query parameters",
        f"more than {limits.JSON_DEPTH} levels",
        f"1 to {limits.LIST_MAX}, by default {limits.LIST_DEFAULT}",
        f"at most {limits.BODY_BYTES // 1024**2} MiB",
    ],
    "limits": [f"has {limits.LIST_SECONDS:g} seconds for a page"],
    "webhooks": [
        f"up to {limits.DESCRIPTION_CHARACTERS} characters",
        f"has at most {limits.WEBHOOKS_PER_WORKSPACE}.",
        f"{MAX_ATTEMPTS} attempts in all",
        f"for {limits.WEBHOOK_SECRET_HOURS} hours",
        f"kept for {limits.DELIVERY_DAYS} days",
    ],
    "exports": [
        f"at most {limits.EXCLUDED_SESSIONS:,}",
        f"a list of up to {limits.EXPORT_WORKFLOWS};",
        f"at most {limits.OPEN_EXPORTS:,} exports that are",
        f'"expires_in": {limits.SIGNED_URL_DEFAULT_SECONDS}',
    ],
}


#: Row of each kind of slow work in the table of docs/limits.md.
SLOW_WORK = {
    "hosted file": "manifests, and the begin of files, of hosted exports",
    "snapshot": "DOM snapshots",
    "destination probe": "new exports, whose destination is tried out",
    "frame upload": "frame uploads",
    "hard delete": "hard deletes",
    "tag anchor": "new tags, replays and recoveries that name an event or a frame",
    "stop search": "stops of large sessions",
    "comparison": "comparisons of exports",
}


def codes() -> set[str]:
    """Return every code that an answer, one of its items or a failed export may carry."""
    texts = {text_of(call.args[2]) for call in calls("Problem") if len(call.args) > 2}
    texts |= {text_of(call.args[1]) for call in calls("ValidationFailed.of") if len(call.args) > 1}
    texts |= {text_of(call.args[2]) for call in calls("_fail_export") if len(call.args) > 2}
    texts |= {
        text_of(keyword.value)
        for call in calls("InvalidJson")
        for keyword in call.keywords
        if keyword.arg == "item"
    }
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(ast.unparse(target) == "code" for target in targets):
                    texts.add(text_of(node.value))
    return {code for code in texts if code}


def commands(command: Any, name: str = "recorder") -> Iterator[tuple[str, set[str]]]:
    """Yield every command with its options; hidden groups are other names of shown ones."""
    for part, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from commands(inner, f"{name} {part}")
    if not hasattr(command, "commands"):
        options = {
            item for parameter in command.params for item in (*parameter.opts, *parameter.secondary_opts)
        }
        yield name, {option for option in options if option.startswith("--")}


def test_every_address_is_named(service: Service) -> None:
    paths = service.app.openapi()["paths"]
    addresses = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    assert len(addresses) > 20
    assert [address for address in addresses if f"`{address}`" not in ALL] == []


def test_every_query_parameter_is_named(service: Service) -> None:
    operations = [
        method for methods in service.app.openapi()["paths"].values() for method in methods.values()
    ]
    names = {parameter["name"] for operation in operations for parameter in operation.get("parameters", [])}
    assert {"actor.kind", "min_frequency", "cursor"} <= names
    assert [name for name in sorted(names) if f"`{name}`" not in ALL and f"{{{name}}}" not in ALL] == []


@pytest.mark.parametrize("page", FIELDS)
def test_every_field_stands_on_the_page_of_its_resource(page: str) -> None:
    spans = " ".join(re.findall(r"`[^`]+`", prose(PAGES[f"docs/{page}.md"])))
    words = set(re.findall(r"[\w.]+", spans))
    names = {name for model in FIELDS[page] for name in fields_of(model)}
    assert sorted(names - words - {"idempotency_key", "actor_kind", "path"}) == []


def fields_of(model: Any) -> set[str]:
    """Return the members of a wire object, whichever library describes it."""
    return set(getattr(model, "model_fields", None) or model.__struct_fields__)


def test_every_column_and_member_of_a_dataset_is_named() -> None:
    page = PAGES["docs/exports.md"]
    names = {*schemas.EVENTS.names, *schemas.FRAMES.names}
    manifest = ast.parse((ROOT / "recorder" / "exports" / "manifest_builder.py").read_text())
    names |= {
        key.value
        for node in ast.walk(manifest)
        if isinstance(node, ast.FunctionDef) and node.name in ("build_manifest", "_make_shard_entry")
        for item in ast.walk(node)
        if isinstance(item, ast.Dict)
        for key in item.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }
    inner = {"tables", "graph", "delta_version", "fingerprint", "fields", "bucket_bits", "erased", "deleted"}
    assert "content_key" in names
    assert [name for name in sorted(names - inner - {"expired"}) if not re.search(rf"\b{name}\b", page)] == []


def test_the_table_of_event_types_is_that_of_the_code() -> None:
    documented = {
        name: (row[0].partition(",")[0], row[2] == "yes")
        for row in table(PAGES["docs/events.md"], "## Types\n")
        for name in row[1].strip("`").split()
    }
    assert documented == {name: (kind.event_class, kind.is_action) for name, kind in EVENT_TYPES.items()}


def test_the_table_of_webhook_events_is_the_catalogue() -> None:
    rows = table(PAGES["docs/webhooks.md"], "## Events\n")
    documented = {
        type: not row[1].endswith("(later)") for row in rows for type in re.findall(r"[\w.]+", row[0])
    }
    assert documented == {type: kind.is_emitted for type, kind in WEBHOOK_TYPES.items()}


@pytest.mark.parametrize("page", NUMBERS)
def test_the_numbers_are_those_of_the_code(page: str) -> None:
    text = " ".join(PAGES[f"docs/{page}.md"].split())
    assert [number for number in NUMBERS[page] if number not in text] == []


def test_the_table_of_tiers_is_that_of_the_code() -> None:
    rows = table(PAGES["docs/workspaces.md"], "The tier is a table of [rate limits]")
    documented = {row[0].strip("`"): tuple(row[2:]) for row in rows}
    assert documented == {
        name: tuple("unlimited" if limit is None else f"{limit:,}" for limit in limits_of)
        for name, limits_of in (
            (tier.name, (tier.captured_minutes, tier.exported_rows)) for tier in TIERS.values()
        )
    }


def test_the_slots_of_slow_work_are_those_of_the_code() -> None:
    documented = {row[0]: int(row[1]) for row in table(PAGES["docs/limits.md"], "## Slow requests\n")}
    assert documented == {SLOW_WORK[kind]: slots for kind, slots in WORK_SLOTS.items()}


def test_the_largest_share_of_a_workspace_at_the_database_is_that_of_the_code() -> None:
    section = PAGES["docs/limits.md"].partition("## Turns at the database\n")[2].partition("\n## ")[0]
    text = " ".join(section.split())
    assert f"has {DATABASE_SLOTS} transactions under way" in text
    assert f"alone at most {DATABASE_SLOTS // 2}," in text


def test_every_code_is_named() -> None:
    raised = codes()
    assert {"invalid_json", "duplicate_key", "lease_lost", "cancelled"} <= raised
    assert [code for code in sorted(raised) if f"`{code}`" not in ALL] == []


def test_every_setting_is_named() -> None:
    files = [*SOURCES, ROOT / "dagster_home" / "dagster.yaml", ROOT / "Makefile"]
    names = {name for path in files for name in re.findall(r"RECORDER_[A-Z0-9_]+", path.read_text())}
    assert {"RECORDER_DATA_DIR", "RECORDER_SECRET", "RECORDER_KEY"} <= names
    assert [name for name in sorted(names) if f"`{name}`" not in PAGES["docs/settings.md"]] == []


def test_the_first_page_exports_the_variables_of_the_examples() -> None:
    exported = set(re.findall(r"^export (RECORDER_\w+)=", PAGES["docs/README.md"], re.MULTILINE))
    used = set(re.findall(r"\$(RECORDER_\w+)", ALL))
    assert used == exported == {"RECORDER_URL", "RECORDER_KEY", "RECORDER_DATA_DIR"}


def test_every_command_and_option_is_named() -> None:
    available = dict(commands(get_command(command_line)))
    page = PAGES["docs/command-line.md"]
    sections = {name: page.partition(f"\n## {name}")[2].partition("\n## ")[0] for name in available}
    missing = {
        f"{name} {option}"
        for name, options in available.items()
        for option in options - {"--help"}
        if f"`{option}`" not in sections[name]
    }
    assert "recorder workspaces create" in available
    assert missing == set()


def test_every_name_in_dagster_is_named() -> None:
    graph = defs.resolve_asset_graph()
    names = {key.to_user_string() for key in graph.get_all_asset_keys()}
    names |= {key.name for key in graph.asset_check_keys}
    names |= {item.name for item in (*(defs.jobs or []), *(defs.sensors or []), *(defs.schedules or []))}
    assert [name for name in sorted(names) if f"`{name}`" not in PAGES["docs/operations.md"]] == []


def test_every_method_of_the_client_is_named() -> None:
    names = {name for kind in (Client, SessionRecorder) for name in dir(kind) if not name.startswith("_")}
    page = PAGES["docs/client.md"]
    assert [name for name in sorted(names) if not re.search(rf"`{name}[(`]", page)] == []
