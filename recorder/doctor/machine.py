"""Checks of the machine: variables, data folder, backups, browser, ports. Contract §9."""

import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from recorder import clock
from recorder.doctor.findings import Finding
from recorder.governance.backup.backup_records import list_old_backups, read_backup_records
from recorder.governance.backup.unfinished_restores import list_unfinished_restores
from recorder.live.browser import NoBrowser, find_chromium
from recorder.settings import Settings, describe_unknown_settings
from recorder.supervisor.child_commands import CannotListen, choose_child_port, make_child_server_url
from recorder.supervisor.run_records import SERVICE, read_run_record
from recorder.supervisor.start_checks import DAGSTER_HOST

#: Below this share of free space, or these bytes, a disk counts as nearly full.
_FREE_SHARE, _FREE_BYTES = 0.05, 2_000_000_000
#: Seconds in which a browser prints its version, and an API answers.
_BROWSER_S, _API_S = 20, 2


@dataclass(frozen=True)
class Ports:
    """Ports on which `recorder up` would listen."""

    host: str = "127.0.0.1"
    api: int = 8700
    dagster: int = 3000


def check_environment_variables() -> Iterator[Finding]:
    """Yield a finding for each variable that has the prefix of settings and is none."""
    sentences = describe_unknown_settings()
    for sentence in sentences:
        yield Finding("settings", "warning", sentence.removeprefix("Warning  "), "Remove or rename it.")
    if not sentences:
        yield Finding("settings", "ok", "Every RECORDER_ variable is a setting.")


def check_data_folder(settings: Settings) -> Iterator[Finding]:
    """Yield findings about the rights and the free space of the data folder."""
    data = settings.data_dir
    for path in (data, data / "secret"):
        if not path.exists():
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            wanted = "700" if path.is_dir() else "600"
            message = f"{path} has mode {mode:o}: other users of this machine can read it."
            yield Finding("data folder", "warning", message, f"chmod {wanted} {path}")
    if not data.exists():  # database and stores are elsewhere
        return
    usage = shutil.disk_usage(data)
    free = f"{usage.free / 1e9:.1f} GB of {usage.total / 1e9:.1f} GB are free in {data}."
    if usage.free < max(_FREE_BYTES, _FREE_SHARE * usage.total):
        yield Finding("disk", "warning", free, "Free some space: a full disk answers uploads with 503.")
    else:
        yield Finding("disk", "ok", free)


def check_secret_file(settings: Settings) -> Iterator[Finding]:
    """Yield a finding if the variable names another secret than the data folder holds."""
    path = settings.data_dir / "secret"
    if path.is_file() and path.read_bytes() != settings.secret:
        message = f"RECORDER_SECRET is not the secret in {path}; services without the variable use that one."
        fix = "Give all services one of them: the one that the deployment was created with."
        yield Finding("secret", "warning", message, fix)


def check_browser(settings: Settings, *, is_wanted: bool) -> Iterator[Finding]:
    """Yield a finding about the browser of live replays.

    Args:
        settings: the deployment.
        is_wanted: whether a workspace allows hosts for live replays.
    """
    try:
        path = find_chromium(settings)
        # Playwright has one of its own where none is installed.
        version = "" if path is None else _read_machine_browser_version(path)
    except NoBrowser as error:
        if is_wanted or settings.browser.chromium is not None:
            sentence, _, fix = f"{error}".partition(". ")
            yield Finding(
                "browser", "warning", f"{sentence.rstrip('.')}.", fix or "Install it, or correct the setting."
            )
        else:
            yield Finding("browser", "ok", "There is no browser for live replays, and nothing asks for one.")
    else:
        browser = f"{version} in {path}" if path is not None else "the one of Playwright"
        yield Finding("browser", "ok", f"The browser of live replays is {browser}.")


def _read_machine_browser_version(path: str) -> str:
    """Return the version that a browser prints.

    Raises:
        NoBrowser: if it does not start.
    """
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=True, timeout=_BROWSER_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NoBrowser(
            f"{path} does not start ({type(error).__name__}). Install it again, or name another one in "
            "RECORDER_CHROMIUM."
        ) from error
    return done.stdout.strip()


def check_backups(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each backup of 30 days, and for each killed restore: they may hold erased data."""
    old = list_old_backups(settings.data_dir)
    for record in old:
        message = f"The backup {record.id} of {clock.to_iso(record.moment)} in {record.to} is 30 days old."
        fix = f"It may hold erased data: `recorder backup {record.to} --keep 29` deletes it."
        yield Finding("backups", "warning", message, fix)
    left = list_unfinished_restores(settings.data_dir)
    for folder in left:
        message = f"A restore that was killed left a copy of the deployment's data in {folder}."
        yield Finding("backups", "warning", message, "It may hold erased data: delete the folder.")
    count = len(read_backup_records(settings.data_dir))
    if not old and not left and count:
        yield Finding("backups", "ok", f"None of {count} recorded backups is older than 30 days.")


def check_ports(settings: Settings, ports: Ports) -> Iterator[Finding]:
    """Yield a finding for each port that `recorder up` would listen on, unless it runs already."""
    record = read_run_record(settings.data_dir, SERVICE)
    if record is not None:
        message = f"The service runs as process {record['process']} at {record.get('api', 'no address yet')}."
        yield Finding("ports", "ok", message)
        return
    # Dagster's pages are on loopback whatever --host is.
    addresses = (("--port", ports.host, ports.api), ("--dagster-port", DAGSTER_HOST, ports.dagster))
    for option, host, port in addresses:
        try:
            choose_child_port(host, port, option=option)
        except CannotListen as error:
            if option == "--port" and _is_port_of_api(host, port):
                message = f"An API process answers at port {port}: `recorder up` would need another --port."
                yield Finding("ports", "ok", message)
            else:
                message, _, fix = str(error).partition(". ")
                yield Finding("ports", "warning", f"{message}.", fix)
        else:
            yield Finding("ports", "ok", f"Port {port} is free for `recorder up`.")


def _is_port_of_api(host: str, port: int) -> bool:
    """Return whether an API of this service answers at a port of this machine."""
    try:
        url = f"{make_child_server_url(host, port)}/healthz"
        answer = httpx.get(url, timeout=_API_S, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
    return answer.status_code == 200 and "Service-Version" in answer.headers
