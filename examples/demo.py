"""`make demo`: all steps on this machine, from recordings to a dataset in polars. Contract §9.

Starts the service on free ports, records the bundled runs (or a folder of real ones) over HTTP, waits until
Dagster has sealed them, prints the common paths, exports Parquet, verifies it and loads it. One run is
replayed and a failed one recovered, both dry.
"""

import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

from rich.console import Console
from rich.text import Text

from examples import demo_report
from examples.dagster_runs import wait_for_export_checks
from examples.demo_workflows import demo_sources
from recorder import Client, __version__, clock
from recorder.access.dagster_login import LoginLinks
from recorder.access.keys import NewKey
from recorder.access.workspaces import create_workspace
from recorder.client.progress import watch_export_progress
from recorder.exports.verify import verify_manifest
from recorder.importers.import_progress import show_import_progress
from recorder.importers.miniwob.demonstration import import_demonstration_folder
from recorder.importers.upload import ImportReport, upload_recordings
from recorder.number_formats import format_count
from recorder.runtime import Runtime
from recorder.settings import DEFAULT_DATA_DIR, Settings
from recorder.shell_commands import make_shell_command, shorten_path
from recorder.storage.durable_files import keep_files_private
from recorder.supervisor import Service

_KEY_FILE = "key"
_EXPORTS = "datasets"
_SESSIONS = 300
_PARALLEL = 4
_SEALING_PATIENCE_S = 1800.0
#: Reasons for which a recovery of real recordings may end without success.
_NO_WAY_BACK = ("no_recovery_points", "candidates_exhausted")

# A log or a pipe has no width of its own.
console = Console() if sys.stdout.isatty() else Console(width=80)


def run(*, recordings: Path | None = None, stay: bool = False) -> int:
    """Run all steps, print each result as soon as it exists, and return the exit code."""
    began = time.monotonic()
    keep_files_private()
    data = (DEFAULT_DATA_DIR / "demo").resolve()
    settings = replace(Settings.from_env(data_dir=data), local_export_root=data / _EXPORTS)
    console.print(
        f"● recorder {__version__}   data: {shorten_path(data)}   (SQLite, local files)",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    with _run_service(settings) as (service, starting):
        _print_done("api", service.base_url, began)
        runtime = Runtime.open(settings)
        key = _make_workspace(runtime)
        with Client(service.base_url, key.key) as client:
            report = _record(client, service.base_url, key, recordings)
            sizes = (("session", report.sessions), ("event", report.events), ("frame", report.frames))
            counts = " · ".join(format_count(number, noun) for noun, number in sizes)
            _print_done("recorded", counts, began, is_good=not report.failed)
            demo_report.show_failed_run(console, client)
            workflows = demo_report.list_workflow_names(runtime, key)
            _wait_for_start(starting)
            _print_done("dagster", service.dagster_url or "", began)
            _wait_sealed(runtime, key, report.sessions)
            _print_done("sealed", format_count(report.sessions, "session"), began)
            demo_report.show_paths(console, client, workflows)
            repeats = _Repeats(client)
            is_good = _export(client, service, settings, workflows, report, began)
            is_good = repeats.show(began, may_be_unrecoverable=recordings is not None) and is_good
        is_good = is_good and not report.failed
        if not is_good:
            logs = shorten_path(settings.data_dir / "logs")
            console.print(f"  A step failed (✗): the logs in {logs} give the cause.", highlight=False)
        if stay:
            _keep_serving(service, settings, key)
        runtime.close()
    for line in list_ways_to_return(data, key):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 0 if is_good else 1


class _Starting(Thread):
    """Thread that starts a service and stores the error of a failed start."""

    def __init__(self, service: Service) -> None:
        super().__init__(name="service", daemon=True)
        self._service = service
        self._error: Exception | None = None

    def run(self) -> None:
        """Start the service."""
        try:
            self._service.start()
        except Exception as error:  # raised again by raise_error
            self._error = error

    def raise_error(self) -> None:
        """Raise the error of a failed start, if there is one."""
        if self._error is not None:
            raise self._error


class _Repeats:
    """A dry replay of a successful run, and a recovery of a failed one; real recordings may have neither.

    Both are requested at once; the results are read later.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        done = next(iter(client.list_sessions(outcome="success")), None)
        workflow = {} if done is None else {"workflow": done["workflow"]}
        failed = next(iter(client.list_sessions(outcome="error", **workflow)), None)
        self._replay = None if done is None else client.create_replay(done["id"])
        self._recovery = None if failed is None else client.create_recovery(failed["id"])

    def show(self, began: float, *, may_be_unrecoverable: bool) -> bool:
        """Wait for both and print them; return whether the replay matched and the recovery succeeded.

        Args:
            began: time at which the demonstration began.
            may_be_unrecoverable: whether real recordings may have no point from which a run matches.
        """
        is_good = True
        if self._replay is not None:
            replay = self._client.wait_replay(self._replay["id"])
            matched = f"{replay['summary']['matched']} of {replay['progress']['steps']} steps matched"
            is_good = replay["status"] == "completed"
            _print_done("replay", f"{replay['status']} · {matched}", began, is_good=is_good)
            if not is_good:
                _print_advice("docs/replays.md explains how a replay ends.")
        if self._recovery is not None:
            recovery = self._client.wait_recovery(self._recovery["id"])
            point = recovery["recovery_point"]
            start = f"from {point['t_ms'] / 1000:.1f} s" if point else recovery["reason"]
            tried = f"{len(recovery['replay_ids'])} of {len(recovery['candidates'])} points tried"
            has_succeeded = recovery["status"] == "succeeded"
            _print_done("recovery", f"{recovery['status']} {start} · {tried}", began, is_good=has_succeeded)
            if not has_succeeded:
                _print_advice(f"docs/recoveries.md says what to do about {recovery['reason']}.")
            is_answer = may_be_unrecoverable and recovery["reason"] in _NO_WAY_BACK
            is_good = is_good and (has_succeeded or is_answer)
        return is_good


@contextmanager
def _run_service(settings: Settings) -> Iterator[tuple[Service, _Starting]]:
    """Run the service on free ports: the API at once, Dagster while the first results arrive."""
    service = Service(
        settings, host="127.0.0.1", port=0, dagster=True, dagster_port=0, console=Console(quiet=True)
    )
    starting = _Starting(service)
    try:
        starting.start()
        while not service.children[0].was_started or not service.children[0].command.is_ready():
            starting.raise_error()
            time.sleep(0.05)
        yield service, starting
    finally:
        with console.status("  stopping the service"):  # which takes up to ten seconds
            service.stopping.set()
            starting.join(timeout=10)
            service.stop()


def _record(client: Client, url: str, key: NewKey, recordings: Path | None) -> ImportReport:
    if recordings is not None:
        return import_demonstration_folder(recordings, url=url, key=key.key)
    with show_import_progress(_SESSIONS, True) as on_done:
        return upload_recordings(client, demo_sources(_SESSIONS), parallel=_PARALLEL, on_done=on_done)


def _export(
    client: Client,
    service: Service,
    settings: Settings,
    workflows: list[str],
    report: ImportReport,
    began: float,
) -> bool:
    """Export, verify and load; return whether every row that was sent is in the dataset."""
    destination = {"kind": "local", "path": str(settings.local_export_root)}
    made = client.create_export(workflows, format="parquet", destination=destination, tag="demo")
    status = make_shell_command("status", "--data", shorten_path(settings.data_dir))
    export = watch_export_progress(client, made["id"], status_command=status)
    folder = (settings.local_export_root or Path()) / export["id"]
    checked = verify_manifest(folder)
    verdict = "verified" if checked.is_valid else "; ".join(checked.problems)
    sizes = (("row", export["rows"]), ("frame", export["frames"]), ("file", export["shards"]))
    counts = " · ".join(format_count(number, noun) for noun, number in sizes)
    _print_done("export", f"parquet · {counts} · {verdict}", began, is_good=checked.is_valid)
    loaded = demo_report.show_dataset(console, folder)
    with service.open_dagster() as dagster:
        checks = wait_for_export_checks(dagster, export["id"], timeout_s=60)
    is_checked = len(checks) == 2 and all(checks.values())
    if is_checked:
        _print_done("checked", "plot and asset checks in Dagster", began)
    else:
        failed = [name for name, passed in checks.items() if not passed]
        what = f"failed: {', '.join(failed)}" if failed else "gave no result within 60 s"
        log = shorten_path(settings.data_dir / "logs" / "dagster-code.log")
        console.print(f"  [red]✗[/red] Dagster's checks of the export {what}; see {log}", highlight=False)
    if loaded != report.events:
        console.print(
            f"  [red]✗[/red] {report.events:,} events were sent, {loaded:,} are in the dataset",
            highlight=False,
        )
    return checked.is_valid and loaded == report.events and is_checked


def _wait_for_start(starting: _Starting) -> None:
    with console.status("  dagster    starting"):
        while starting.is_alive():
            starting.join(timeout=0.2)
    starting.raise_error()


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
    """Create a new workspace for this demonstration, and write its key to a file in the data folder."""
    settings = runtime.settings
    with runtime.database.transaction(write=True) as db:
        name = f"demo-{clock.now():%Y%m%d-%H%M%S}"
        key = create_workspace(db, name, region=settings.region, secret=settings.secret, tier="unlimited")
    path = settings.data_dir / _KEY_FILE
    path.unlink(missing_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(key.key + "\n")
    return key


def list_ways_to_return(data: Path, key: NewKey) -> tuple[str, ...]:
    """Return the lines with the command, pages and key with which the results can be read later."""
    folder = shorten_path(data)
    exports = shlex.quote(str(Path(folder) / _EXPORTS))
    key_file = shlex.quote(str(Path(folder) / _KEY_FILE))
    listing = make_shell_command("sessions", "list", "--key")
    return (
        f"  All data are in {folder}. Serve them again, exports included, with:",
        f"      RECORDER_LOCAL_EXPORT_ROOT={exports} \\",
        f"          {make_shell_command('up', '--data', folder)}",
        "  While another service runs, stop it first (`make up`: Ctrl-C), or add",
        "      --port 0 --dagster-port 0    and open the addresses that it prints",
        "  Then open:",
        f"      {Settings.public_url}/docs   the API's pages",
        "      the link that `up` prints    Dagster's pages: runs, sessions, datasets",
        f"  API key, also in {key_file}:",
        f"      {key.key}",
        "  In another terminal, for example:",
        f'      {listing} "$(cat {key_file})"',
    )


def _keep_serving(service: Service, settings: Settings, key: NewKey) -> None:
    link = LoginLinks(settings).make_link(service.dagster_url or "")
    status = make_shell_command("status", "--data", shorten_path(settings.data_dir))
    lines = (
        f"  API      {service.base_url}/docs   with its key:",
        f"      {key.key}",
        f"  Dagster  {link}",
        f"           opens once; {status} prints another link",
        "  Ctrl-C ends the service.",
    )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    try:
        service.watch()
    except KeyboardInterrupt:
        return


def _print_done(what: str, result: str, began: float, *, is_good: bool = True) -> None:
    seconds = time.monotonic() - began
    mark = ("✓", "green") if is_good else ("✗", "red")
    line = Text.assemble("  ", mark, f" {what:<10} {result}  ", (f"{seconds:.1f} s", "dim"))
    console.print(line, highlight=False, soft_wrap=True)


def _print_advice(sentence: str) -> None:
    console.print(f"               {sentence}", highlight=False, markup=False, soft_wrap=True)
