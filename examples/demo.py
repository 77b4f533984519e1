"""`make demo`: the whole road on this machine, from recordings to a dataset in polars. Contract §9.

Starts the service on free ports, records the bundled runs (or a folder of real ones) over HTTP, waits until
Dagster has sealed them, prints the common paths, exports Parquet, verifies it and loads it.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

from rich.console import Console

from examples import demo_report
from examples.dagster_runs import wait_for_export_run
from examples.demo_workflows import demo_sources
from recorder import __version__, clock
from recorder.access.dagster_login import LoginLinks
from recorder.access.keys import NewKey, create_workspace
from recorder.client import Client
from recorder.client.progress import watch_export
from recorder.exports.verify import verify_manifest
from recorder.importers.folder import import_folder, shown_progress
from recorder.importers.upload import ImportReport, upload_recordings
from recorder.runtime import Runtime
from recorder.settings import DEFAULT_DATA_DIR, Settings
from recorder.supervisor import Service

_SESSIONS = 300
_PARALLEL = 4
_SEALING_PATIENCE_S = 1800.0

# Where nobody's terminal sets a width (a log, a pipe), tables get room.
console = Console() if sys.stdout.isatty() else Console(width=140)


def run(*, recordings: Path | None = None, stay: bool = False) -> int:
    """Do the whole job and print each result as soon as it exists; returns the exit code."""
    began = time.monotonic()
    data = (DEFAULT_DATA_DIR / "demo").resolve()
    settings = replace(Settings.from_env(data_dir=data), local_export_root=data / "datasets")
    console.print(f"● recorder {__version__}   data: {data}   (SQLite, local files)", highlight=False)
    with _service(settings) as (service, dagster):
        _done("api", service.base_url, began)
        runtime = Runtime.open(settings)
        key = _make_workspace(runtime)
        with Client(service.base_url, key.key) as client:
            report = _record(client, service.base_url, key, recordings)
            brought = f"{report.sessions} sessions · {report.events} events · {report.frames} frames"
            _done("recorded", brought, began)
            demo_report.show_failed_run(console, client)
            workflows = demo_report.workflows_of(runtime, key)
            _wait_for(dagster, service)
            _done("dagster", service.dagster_url or "", began)
            _wait_sealed(runtime, key, report.sessions)
            _done("sealed", f"{report.sessions} sessions", began)
            demo_report.show_paths(console, client, runtime, key, workflows)
            is_good = _export(client, service, settings, workflows, report, began)
        if stay:
            _stay(service, settings, key)
        runtime.close()
    console.print(f"  Look at it again: [b]recorder up --data {os.path.relpath(data)}[/b]", highlight=False)
    return 0 if is_good and not report.failed else 1


@contextmanager
def _service(settings: Settings) -> Iterator[tuple[Service, Thread]]:
    """The service on free ports: the API at once, Dagster while the first results come in."""
    service = Service(
        settings, host="127.0.0.1", port=0, dagster=True, dagster_port=0, console=Console(quiet=True)
    )
    starting = Thread(target=service.start, name="service", daemon=True)
    try:
        starting.start()
        while not service.children[0].was_started or not service.children[0].command.is_ready():
            _check(starting, service)
            time.sleep(0.05)
        yield service, starting
    finally:
        service.stopping.set()
        starting.join(timeout=10)
        service.stop()


def _record(client: Client, url: str, key: NewKey, recordings: Path | None) -> ImportReport:
    if recordings is not None:
        return import_folder(recordings, url=url, key=key.key)
    with shown_progress(_SESSIONS, True) as on_done:
        return upload_recordings(client, demo_sources(_SESSIONS), parallel=_PARALLEL, on_done=on_done)


def _export(
    client: Client,
    service: Service,
    settings: Settings,
    workflows: list[str],
    report: ImportReport,
    began: float,
) -> bool:
    """Export, verify, load; True if every row that was sent is in the dataset."""
    destination = {"kind": "local", "path": str(settings.local_export_root)}
    made = client.create_export(workflows, format="parquet", destination=destination, tag="demo")
    export = watch_export(client, made["id"])
    folder = (settings.local_export_root or Path()) / export["id"]
    checked = verify_manifest(folder)
    verdict = "manifest verified" if checked.is_valid else "; ".join(checked.problems)
    rows = f"{export['rows']} rows · {export['frames']} frames · {export['shards']} shards"
    _done("export", f"parquet · {rows} · {verdict}", began)
    loaded = demo_report.show_dataset(console, folder)
    with service.open_dagster() as dagster:
        ended = wait_for_export_run(dagster, export["id"], timeout_s=60)
    _done("checked", f"plot and asset check in Dagster: {ended or 'not done in time'}", began)
    if loaded != report.events:
        console.print(f"  [red]✗[/red] {report.events} events were sent, {loaded} came back", highlight=False)
    return checked.is_valid and loaded == report.events and ended == "SUCCESS"


def _wait_for(starting: Thread, service: Service) -> None:
    with console.status("  dagster    starting"):
        while starting.is_alive():
            starting.join(timeout=0.2)
    _check(starting, service)


def _check(starting: Thread, service: Service) -> None:
    """End the demonstration where a part did not start: its log says why."""
    if starting.is_alive():
        return
    ended = [child.command for child in service.children if not child.was_started or child.has_ended()]
    if ended:
        raise SystemExit(f"{ended[0].name} did not start; see {ended[0].log}")


def _wait_sealed(runtime: Runtime, key: NewKey, expected: int) -> None:
    with demo_report.sealing_bar(console, expected) as advance:
        until = time.monotonic() + _SEALING_PATIENCE_S
        while (sealed := demo_report.count_sealed(runtime, key)) < expected:
            if time.monotonic() > until:
                raise SystemExit("Sealing takes too long; see the Dagster pages and logs in the data folder.")
            advance(sealed)
            time.sleep(0.1)
        advance(sealed)


def _make_workspace(runtime: Runtime) -> NewKey:
    """A workspace of its own for every demonstration; its key lies beside the data, for later looks."""
    settings = runtime.settings
    with runtime.database.transaction(write=True) as db:
        name = f"demo {clock.to_iso(clock.now())}"
        key = create_workspace(db, name, region=settings.region, secret=settings.secret, tier="unlimited")
    path = settings.data_dir / "key"
    path.unlink(missing_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(key.key + "\n")
    return key


def _stay(service: Service, settings: Settings, key: NewKey) -> None:
    link = LoginLinks(settings).make_link(service.dagster_url or "")
    console.print(f"  API {service.base_url}/docs   key: {key.key}")
    console.print(f"  Dagster {link}   (opens once; `recorder status` prints another)", highlight=False)
    console.print("  Ctrl-C ends it.")
    try:
        service.watch()
    except KeyboardInterrupt:
        return


def _done(what: str, result: str, began: float) -> None:
    seconds = time.monotonic() - began
    console.print(f"  [green]✓[/green] {what:<10} {result}   [dim]{seconds:.1f} s[/dim]", highlight=False)
