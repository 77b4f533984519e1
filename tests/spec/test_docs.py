"""The documentation names what there is: addresses, fields, numbers, codes, settings, commands."""

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from pipelines.definitions import defs
from recorder import limits
from recorder.cli import app as command_line
from recorder.client import Client, SessionRecorder
from recorder.exports import schemas
from recorder.models.event import App, EventItem, Input, Target, Trace
from recorder.models.event_types import EVENT_TYPES
from recorder.models.export import Export, ExportCreate, ExportFilter, FrameSampling
from recorder.models.frame import Frame, FrameItem
from recorder.models.memory import MemoryPath
from recorder.models.session import FramesSummary, Session, SessionCreate
from recorder.models.tag import Tag, TagCreate
from tests.factories import Service
from tests.pages import ALL, PAGES, ROOT, SOURCES, calls, prose, table, text_of

FIELDS: dict[str, list[Any]] = {
    "sessions": [Session, SessionCreate, FramesSummary],
    "events": [EventItem, Target, Input, App, Trace],
    "frames": [Frame, FrameItem],
    "tags": [Tag, TagCreate],
    "memory": [MemoryPath],
    "exports": [Export, ExportCreate, ExportFilter, FrameSampling],
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
    "interface": [
        f"more than {limits.JSON_DEPTH} levels",
        f"1 to {limits.LIST_MAX}, by default {limits.LIST_DEFAULT}",
        f"at most {limits.BODY_BYTES // 1024**2} MiB",
    ],
    "exports": [
        f"at most {limits.EXCLUDED_SESSIONS:,}",
        f'"expires_in": {limits.SIGNED_URL_DEFAULT_SECONDS}',
    ],
}


def codes() -> set[str]:
    """Every code that an answer, one of its items or a failed export may carry."""
    found = {text_of(call.args[2]) for call in calls("Problem") if len(call.args) > 2}
    found |= {text_of(call.args[1]) for call in calls("ValidationFailed.of") if len(call.args) > 1}
    found |= {text_of(call.args[2]) for call in calls("_fail") if len(call.args) > 2}
    found |= {
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
                    found.add(text_of(node.value))
    return {code for code in found if code}


def commands(command: Any, name: str = "recorder") -> Iterator[tuple[str, set[str]]]:
    """Every command with its options."""
    for part, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {part}")
    if not hasattr(command, "commands"):
        options = {
            one for parameter in command.params for one in (*parameter.opts, *parameter.secondary_opts)
        }
        yield name, {option for option in options if option.startswith("--")}


def test_every_address_is_named(service: Service) -> None:
    paths = service.app.openapi()["paths"]
    addresses = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    assert len(addresses) > 20
    assert [address for address in addresses if f"`{address}`" not in ALL] == []


def test_every_query_parameter_is_named(service: Service) -> None:
    operations = [one for methods in service.app.openapi()["paths"].values() for one in methods.values()]
    names = {parameter["name"] for one in operations for parameter in one.get("parameters", [])}
    assert {"actor.kind", "min_frequency", "cursor"} <= names
    assert [name for name in sorted(names) if f"`{name}`" not in ALL and f"{{{name}}}" not in ALL] == []


@pytest.mark.parametrize("page", FIELDS)
def test_every_field_stands_on_the_page_of_its_resource(page: str) -> None:
    spans = " ".join(re.findall(r"`[^`]+`", prose(PAGES[f"docs/{page}.md"])))
    words = set(re.findall(r"[\w.]+", spans))
    names = {name for model in FIELDS[page] for name in fields_of(model)}
    assert sorted(names - words - {"idempotency_key", "actor_kind", "path"}) == []


def fields_of(model: Any) -> set[str]:
    """The members of a wire object, whichever library describes it."""
    return set(getattr(model, "model_fields", None) or model.__struct_fields__)


def test_every_column_and_member_of_a_dataset_is_named() -> None:
    page = PAGES["docs/exports.md"]
    names = {*schemas.EVENTS.names, *schemas.FRAMES.names}
    manifest = ast.parse((ROOT / "recorder" / "exports" / "manifest.py").read_text())
    names |= {
        key.value
        for node in ast.walk(manifest)
        if isinstance(node, ast.FunctionDef) and node.name in ("build_manifest", "_entry")
        for found in ast.walk(node)
        if isinstance(found, ast.Dict)
        for key in found.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }
    inner = {"tables", "graph", "delta_version", "fingerprint", "fields", "bucket_bits", "erased", "deleted"}
    assert "content_key" in names
    assert [name for name in sorted(names - inner - {"expired"}) if not re.search(rf"\b{name}\b", page)] == []


def test_the_table_of_event_types_is_that_of_the_code() -> None:
    told = {
        name: (row[0].partition(",")[0], row[2] == "yes")
        for row in table(PAGES["docs/events.md"], "## Types\n")
        for name in row[1].strip("`").split()
    }
    assert told == {name: (kind.event_class, kind.is_action) for name, kind in EVENT_TYPES.items()}


@pytest.mark.parametrize("page", NUMBERS)
def test_the_numbers_are_those_of_the_code(page: str) -> None:
    text = " ".join(PAGES[f"docs/{page}.md"].split())
    assert [number for number in NUMBERS[page] if number not in text] == []


def test_every_code_is_named() -> None:
    found = codes()
    assert {"invalid_json", "duplicate_key", "lease_lost", "cancelled", "not_supported_yet"} <= found
    assert [code for code in sorted(found) if f"`{code}`" not in ALL] == []


def test_every_setting_is_named() -> None:
    files = [*SOURCES, ROOT / "dagster_home" / "dagster.yaml", ROOT / "Makefile"]
    names = {name for path in files for name in re.findall(r"RECORDER_[A-Z_]+", path.read_text())}
    assert {"RECORDER_DATA_DIR", "RECORDER_SECRET", "RECORDER_KEY"} <= names
    assert [name for name in sorted(names) if f"`{name}`" not in PAGES["docs/settings.md"]] == []


def test_every_command_and_option_is_named() -> None:
    found = dict(commands(get_command(command_line)))
    page = PAGES["docs/command-line.md"]
    sections = {name: page.partition(f"\n## {name}")[2].partition("\n## ")[0] for name in found}
    missing = {
        f"{name} {option}"
        for name, options in found.items()
        for option in options - {"--help"}
        if f"`{option}`" not in sections[name]
    }
    assert "recorder workspace create" in found
    assert missing == set()


def test_every_name_in_dagster_is_named() -> None:
    graph = defs.resolve_asset_graph()
    names = {key.to_user_string() for key in graph.get_all_asset_keys()}
    names |= {key.name for key in graph.asset_check_keys}
    names |= {one.name for one in (*(defs.jobs or []), *(defs.sensors or []), *(defs.schedules or []))}
    assert [name for name in sorted(names) if f"`{name}`" not in PAGES["docs/operations.md"]] == []


def test_every_method_of_the_client_is_named() -> None:
    names = {name for kind in (Client, SessionRecorder) for name in vars(kind) if not name.startswith("_")}
    page = PAGES["docs/client.md"]
    assert [name for name in sorted(names) if not re.search(rf"`{name}[(`]", page)] == []
