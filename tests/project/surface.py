"""Record of the product's public surface, to compare two states of the project.

`python -m tests.project.surface write FILE` writes it as JSON. `python -m tests.project.surface compare A B`
prints the members in which two records differ and returns 1 if there are any. Texts for people (summaries,
details, help) are left out. Two records of one commit are equal.
"""

import contextlib
import difflib
import gc
import hashlib
import inspect
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import dagster as dg
import pytest
import sqlalchemy
from starlette.testclient import TestClient
from typer.main import get_command
from typer.testing import CliRunner

import recorder
from api.app import create_app
from api.errors import http_status_of
from pipelines.definitions import defs
from recorder import errors, ids
from recorder.cli import app as command_line
from recorder.client import Client
from recorder.errors import RecorderError
from recorder.exports.runner.run import run_export
from recorder.models.export_request import ExportFormat
from recorder.storage.database import Database
from tests.conftest import running_postgres
from tests.support.export_runs import ask, folder_of
from tests.support.http_service import running_service
from tests.support.sealed_sessions import Recording, make_runtime, make_settings, seal
from tests.test_errors import every_error

ROOT = Path(__file__).parents[2]
#: Members of documents and errors that hold wording.
_WORDING = {"summary", "description", "title", "detail", "message"}
#: Members that differ from request to request.
_VOLATILE = {"request_id"}
_SETTING = re.compile(r"[\"']([A-Z]+_)?(RECORDER_[A-Z0-9_]+)[\"']")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)?")
_UNTIL = "2026-06-01T00:00:00Z"


def record() -> dict[str, Any]:
    """Return the whole surface; PostgreSQL's schema only where PostgreSQL is installed."""
    return {
        "openapi": read_openapi(),
        "errors": list_errors(),
        "error_bodies": read_error_bodies(),
        "cli": list_commands(),
        "cli_json": read_command_output(),
        "exports": hash_exports(),
        "schema": read_schemas(),
        "dagster": list_definitions(),
        "settings": list_settings(),
        "recorder": {name: _describe_member(name) for name in recorder.__all__ if name != "__version__"},
    }


def read_openapi() -> Any:
    """Return the OpenAPI document without wording; property names are kept, whatever they are."""
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(make_settings(Path(folder)))
        document = json.loads(json.dumps(app.openapi()))
        app.state.runtime.close()
    document["info"].pop("version", None)
    return _drop_wording(document)


def _drop_wording(value: Any, *, are_names: bool = False) -> Any:
    """Drop `summary` and `description` of objects, but not where the keys are names of properties."""
    if isinstance(value, list):
        return [_drop_wording(item) for item in value]
    if not isinstance(value, dict):
        return value
    named = ("properties", "schemas", "paths", "example", "value")
    return {
        key: _drop_wording(item, are_names=key in named and not are_names)
        for key, item in value.items()
        if are_names or key not in ("summary", "description")
    }


def list_errors() -> list[Any]:
    """Return status, code, wait and further members of every error class, each combination once."""
    rows = {json.dumps(_describe_error(kind), sort_keys=True) for kind in every_error()}
    return [json.loads(row) for row in sorted(rows)]


def _describe_error(kind: type[RecorderError]) -> dict[str, Any]:
    error = kind.__new__(kind)
    described = {
        "status": http_status_of(error),
        "code": kind.code,
        "type": f"urn:recorder:problem:{kind.code}",
    }
    with contextlib.suppress(Exception):
        made = kind(**{name: _sample(item) for name, item in inspect.signature(kind).parameters.items()})
        return described | {"retry_after_s": made.retry_after_s, "members": sorted(made.extra)}
    return described | {"retry_after_s": kind.retry_after_s}


def _sample(parameter: inspect.Parameter) -> Any:
    """Return a value that fits a parameter of an error class."""
    if parameter.default is not inspect.Parameter.empty:
        return parameter.default
    samples: dict[Any, Any] = {str: "x", int: 1, float: 1.0, bool: True, bytes: b"x", Path: Path("x")}
    samples[datetime] = datetime(2026, 5, 1, tzinfo=UTC)
    if parameter.annotation in samples:
        return samples[parameter.annotation]
    if "list" in str(parameter.annotation):
        return [errors.Problem("body", "/x", "missing", "x")]
    raise TypeError(parameter.name)


def read_error_bodies() -> dict[str, Any]:
    """Return answers to wrong requests of many kinds, without wording and request ids."""
    with tempfile.TemporaryDirectory() as folder:
        settings = make_settings(Path(folder))
        with TestClient(create_app(settings), raise_server_exceptions=False) as client:
            with client.app.state.runtime.database.transaction(write=True) as db:  # type: ignore[attr-defined]
                key = _create_keys(db, settings.secret)
            return {name: _send(client, key, *request) for name, request in _WRONG_REQUESTS.items()}


def _create_keys(db: Any, secret: bytes) -> dict[str, str]:
    from recorder.access.keys import create_key
    from recorder.access.workspaces import create_workspace

    workspace_id = create_workspace(db, "surface", region="us", secret=secret, tier="unlimited").workspace_id
    keys = {
        scope: create_key(db, workspace_id, label="surface", scope=scope, mode="live", secret=secret).key
        for scope in ("admin", "read")
    }
    return {**keys, "none": "", "wrong": "nsk_local_none"}


_SESSIONS = "/v1/sessions"
_ID = "0" * 26
#: Name → key, method, path, body, headers.
_WRONG_REQUESTS: dict[str, tuple[Any, ...]] = {
    "no key": ("none", "GET", _SESSIONS),
    "unknown key": ("wrong", "GET", _SESSIONS),
    "scope": ("read", "POST", _SESSIONS, b"{}"),
    "no address": ("admin", "GET", "/v1/nothing"),
    "method": ("admin", "PUT", _SESSIONS),
    "missing session": ("admin", "GET", f"{_SESSIONS}/ses_{_ID}"),
    "missing export": ("admin", "GET", f"/v1/exports/exp_{_ID}"),
    "missing webhook": ("admin", "GET", f"/v1/webhooks/whk_{_ID}"),
    "missing key": ("admin", "DELETE", f"/v1/keys/key_{_ID}"),
    "missing workflow": ("admin", "GET", "/v1/workflows/nothing"),
    "missing graph": ("admin", "GET", "/v1/memory/graph?workflow=nothing"),
    "no JSON": ("admin", "POST", _SESSIONS, b"{"),
    "media type": ("admin", "POST", _SESSIONS, b"{}", {"Content-Type": "text/plain"}),
    "missing member": ("admin", "POST", _SESSIONS, b"{}"),
    "unknown member": ("admin", "POST", _SESSIONS, b'{"workflow": "a", "x": 1}'),
    "unknown parameter": ("admin", "GET", f"{_SESSIONS}?x=1"),
    "wrong parameter": ("admin", "GET", f"{_SESSIONS}?limit=x"),
    "cursor": ("admin", "GET", f"{_SESSIONS}?cursor=x"),
    "time": ("admin", "GET", f"{_SESSIONS}?since=x"),
    "version": ("admin", "GET", _SESSIONS, None, {"Recorder-Version": "x"}),
    "empty batch": ("admin", "POST", f"{_SESSIONS}/ses_{_ID}/events", b'{"events": []}'),
    "wrong event": ("admin", "POST", f"{_SESSIONS}/ses_{_ID}/events", b'{"events": [{"t_ms": -1}]}'),
    "wrong frame": ("admin", "POST", f"{_SESSIONS}/ses_{_ID}/frames", b'{"frames": [{"t_ms": -1}]}'),
    "export": ("admin", "POST", "/v1/exports", b'{"workflow": "a", "format": "x"}'),
    "destination": (
        "admin", "POST", "/v1/exports",
        b'{"workflow": "a", "format": "parquet", "destination": {"kind": "local", "path": "../x"}}',
    ),
    "webhook URL": ("admin", "POST", "/v1/webhooks", b'{"url": "x", "events": ["session.sealed"]}'),
    "signature": ("none", "GET", f"/v1/exports/exp_{_ID}/manifest?expires=1&signature=x"),
    "host": ("admin", "GET", _SESSIONS, None, {"Host": "elsewhere.example"}),
}  # fmt: skip


def _send(
    client: TestClient,
    keys: dict[str, str],
    key: str,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return status, names of headers and body of an answer."""
    sent = {"Authorization": f"Bearer {keys[key]}"} if keys[key] else {}
    sent |= {"Content-Type": "application/json"} if body is not None else {}
    answer = client.request(method, path, content=body, headers=sent | (headers or {}))
    return {"status": answer.status_code, "headers": sorted(answer.headers), "body": _plain(answer.json())}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if key not in _WORDING | _VOLATILE}
    return value


def list_commands() -> dict[str, Any]:
    """Return every command with its arguments and options."""
    return dict(_walk_commands(get_command(command_line), ()))


def _walk_commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    yield (
        " ".join(("recorder", *words)),
        {
            item.name
            if item.param_type_name == "argument"
            else " ".join([*item.opts, *item.secondary_opts]): {
                "required": item.required,
                "values": item.nargs,
                "is_multiple": item.multiple,
                "is_flag": getattr(item, "is_flag", False),
                "default": None if callable(item.default) else str(item.default),
                "variable": item.envvar,
            }
            for item in command.params
        },
    )
    for name, below in getattr(command, "commands", {}).items():
        yield from _walk_commands(below, (*words, name))


def read_command_output() -> dict[str, Any]:
    """Return exit codes and the members of `--json` outputs, on a small deployment with a running API."""
    with tempfile.TemporaryDirectory() as name, running_service(Path(name) / "service") as service:
        folder = Path(name)
        with Client(service.url, service.key) as client:
            session = client.create_session("checkout", start=True)["id"]
            client.tag(session, "success")
            client.stop(session)
        return dict(_run_commands(folder, folder / "service", service.url, service.key, session))


def _run_commands(
    folder: Path, data: Path, url: str, key: str, session: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    log = folder / "log.csv"
    log.write_text("case,activity,timestamp\n1,a,2026-05-01T00:00:00Z\n1,b,2026-05-01T00:00:01Z\n")
    manifest = _export_once(folder / "exported", "parquet")[0] / "manifest.json"
    of_data, of_service = ["--data", str(data)], ["--url", url, "--key", key]
    commands: list[tuple[str, list[str]]] = [
        ("workspaces create surface", of_data),
        ("workspaces list", of_data),
        ("workspaces show surface", of_data),
        ("workspaces set surface --tier unlimited", of_data),
        ("keys create surface label", of_data),
        ("keys list surface", of_data),
        ("audit verify --workspace surface", of_data),
        ("audit head --workspace surface", of_data),
        ("recipes add nightly checkout --workspace surface", ["--cron", "0 3 * * *", *of_data]),
        ("recipes list --workspace surface", of_data),
        ("drift list --workspace surface", of_data),
        ("drift backtest checkout --workspace surface", of_data),
        ("sessions quarantined --workspace surface", of_data),
        ("status", of_data),
        ("sessions list", of_service),
        ("export checkout", of_service),
        ("log summary", [str(log)]),
        ("verify", [str(manifest)]),
    ]
    for words, options in commands:
        result = CliRunner().invoke(command_line, [*words.split(), *options, "--json"])
        lines = [_shape(line) for line in result.stdout.splitlines()]
        error = type(result.exception).__mro__ if isinstance(result.exception, RecorderError) else ()
        codes = [kind.code for kind in error[:1]]
        yield words, {"code": result.exit_code, "lines": lines, "error": codes}


def _shape(line: str) -> Any:
    try:
        return _shape_of(json.loads(line))
    except ValueError:
        return "text"


def _shape_of(value: Any) -> Any:
    """Return the members of a JSON value with the names of their types."""
    if isinstance(value, dict):
        return {key: _shape_of(item) for key, item in value.items()}
    if isinstance(value, list):
        shapes = {json.dumps(_shape_of(item), sort_keys=True) for item in value}
        return [json.loads(shape) for shape in sorted(shapes)]
    return (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    )


def hash_exports() -> dict[str, dict[str, str]]:
    """Return the SHA-256 of every file of a seeded dataset, in every format.

    The export's id and the instants of its run are replaced in text files before they are hashed.
    """
    return {format: _hash_export(format) for format in get_args(ExportFormat)}


def _hash_export(format: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as name:
        folder, export_id = _export_once(Path(name), format)
        return {
            path.relative_to(folder).as_posix(): hashlib.sha256(_stable_bytes(path, export_id)).hexdigest()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


def _export_once(home: Path, format: str) -> tuple[Path, str]:
    """Export a seeded dataset; return its folder and the export's id."""
    runtime = make_runtime(home)
    numbers = iter(range(1 << 100, 1 << 101, 1 << 64))
    with mock.patch.object(ids, "reserve_ulid_values", lambda count: next(numbers)):
        seal(runtime, _make_recordings())
    body: dict[str, Any] = {
        "workflow": ["checkout", "login"],
        "filter": {"until": _UNTIL},
        "split": {"by": "session", "validation": 0.2, "test": 0.2},
    }
    row = run_export(runtime, ask(runtime, format=format, **body).id, owner="surface")
    assert row.status == "completed", row.error
    folder = folder_of(runtime, row)
    runtime.close()
    return folder, row.id


def _make_recordings() -> list[Recording]:
    drawn = random.Random(7)
    return [
        Recording(
            workflow=drawn.choice(["checkout", "login"]),
            events=[
                (t_ms, drawn.choice(["click", "input", "scroll", "navigate"])) for t_ms in range(0, 900, 100)
            ],
            frames=sorted(drawn.sample(range(1_000), 4)),
            outcome=drawn.choice(["success", "error", None]),
            padding=drawn.randrange(40),
        )
        for _ in range(24)
    ]


def _stable_bytes(path: Path, export_id: str) -> bytes:
    data = path.read_bytes()
    if path.suffix not in (".json", ".md"):
        return data
    return _INSTANT.sub("INSTANT", data.decode().replace(export_id, "EXPORT")).encode()


def read_schemas() -> dict[str, Any]:
    """Return tables, columns, indexes and constraints on each engine that is installed."""
    schemas = {}
    with tempfile.TemporaryDirectory() as folder:
        schemas["sqlite"] = _read_schema(f"sqlite:///{folder}/recorder.db")
    with contextlib.suppress(pytest.skip.Exception), running_postgres() as cluster:
        schemas["postgresql"] = _read_schema(f"{cluster}/postgres")
    return schemas


def _read_schema(url: str) -> dict[str, Any]:
    database = Database(url)
    database.migrate()
    database.close()
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    inspector = sqlalchemy.inspect(engine)
    readers: dict[str, Callable[[str], Any]] = {
        "columns": inspector.get_columns,
        "key": inspector.get_pk_constraint,
        "foreign_keys": inspector.get_foreign_keys,
        "indexes": inspector.get_indexes,
        "unique": inspector.get_unique_constraints,
        "checks": inspector.get_check_constraints,
    }
    tables = {
        table: {name: _sorted_rows(read(table)) for name, read in readers.items()}
        for table in sorted(inspector.get_table_names())
    }
    engine.dispose()
    return tables


def _sorted_rows(rows: Any) -> Any:
    if isinstance(rows, list):
        return sorted((_sorted_rows(row) for row in rows), key=str)
    return {name: _text_of(value) for name, value in rows.items()}


def _text_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _text_of(item) for name, item in sorted(value.items())}
    return value if isinstance(value, list | bool | int | None) else str(value)


def list_definitions() -> dict[str, Any]:
    """Return assets, checks, jobs, sensors, schedules and partitions of the Dagster code location."""
    graph, repository = defs.resolve_asset_graph(), defs.get_repository_def()
    return {
        "assets": {
            key.to_user_string(): {
                "group": graph.get(key).group_name,
                "partitions": str(graph.get(key).partitions_def),
                "parents": sorted(parent.to_user_string() for parent in graph.get(key).parent_keys),
            }
            for key in graph.get_all_asset_keys()
        },
        "checks": sorted(f"{key.asset_key.to_user_string()}: {key.name}" for key in graph.asset_check_keys),
        "jobs": sorted(repository.job_names),
        "sensors": {item.name: _targets(item) for item in repository.sensor_defs},
        "schedules": {item.name: [item.cron_schedule, item.job_name] for item in repository.schedule_defs},
        "resources": sorted(repository.get_top_level_resources()),
    }


def _targets(sensor: dg.SensorDefinition) -> Any:
    return {
        "jobs": sorted(target.job_name for target in sensor.targets),
        "seconds": sensor.minimum_interval_seconds,
        "status": sensor.default_status.value,
    }


def list_settings() -> list[str]:
    """Return the names of environment variables that the product's sources name."""
    sources = [path for part in ("api", "pipelines", "recorder") for path in (ROOT / part).rglob("*.py")]
    return sorted(
        {match[2] for path in sources for match in _SETTING.finditer(path.read_text()) if not match[1]}
    )


def _describe_member(name: str) -> Any:
    """Return the parameters of a public function, or of the public methods of a public class."""
    member = getattr(recorder, name)
    if not inspect.isclass(member):
        return list(inspect.signature(member).parameters)
    methods = inspect.getmembers(member, inspect.isfunction)
    return {
        method: list(inspect.signature(function).parameters)
        for method, function in methods
        if method == "__init__" or not method.startswith("_")
    }


def format_record(surface: dict[str, Any]) -> str:
    """Return a record as JSON with one member a line."""
    return json.dumps(surface, indent=1, sort_keys=True) + "\n"


def compare(before: str, after: str) -> list[str]:
    """Return the lines of a unified diff of two records, one member of the surface a line."""
    first, second = _list_leaves(json.loads(before)), _list_leaves(json.loads(after))
    return list(difflib.unified_diff(first, second, "before", "after", lineterm="", n=0))[2:]


def _list_leaves(value: Any, path: str = "") -> list[str]:
    """Return each leaf of a JSON value as `path = value`, so that a line of a diff names its place."""
    if isinstance(value, dict) and value:
        return [leaf for key in sorted(value) for leaf in _list_leaves(value[key], f"{path} › {key}")]
    if isinstance(value, list) and value:
        return [leaf for index, item in enumerate(value) for leaf in _list_leaves(item, f"{path}[{index}]")]
    return [f"{path.removeprefix(' › ')} = {json.dumps(value)}"]


def main(arguments: list[str]) -> int:
    """Run `write FILE` or `compare A B`."""
    gc.enable()  # the settings of the tests turn it off until tests are collected
    os.environ["DAGSTER_DISABLE_TELEMETRY"] = "yes"  # noqa: TID251
    match arguments:
        case ["write", file]:
            Path(file).write_text(format_record(record()))
            return 0
        case ["compare", before, after]:
            lines = compare(Path(before).read_text(), Path(after).read_text())
            print(*lines, sep="\n")
            print(f"{sum(line[0] in '+-' for line in lines)} lines differ")
            return int(bool(lines))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
