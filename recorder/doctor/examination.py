"""Checks of a deployment for its operator: settings, stores, contents, sealing, clocks, ports. Contract §9.

Each check yields findings: one line each, with the next step where something is wrong. Checks read, except
that a store is tested by writing one object and deleting it.
"""

import random
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import polars as pl
from sqlalchemy import func, text
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import RecorderError, Unavailable
from recorder.governance.backup.records import find_old_backups, read_backup_records
from recorder.governance.overdue import count_overdue
from recorder.ids import new_id
from recorder.models.operations import LeaseRow
from recorder.models.session import SessionRow
from recorder.plurals import counted
from recorder.sealing import lanes
from recorder.service_state import list_warnings, read_service_state
from recorder.settings import Settings, unknown_settings
from recorder.storage.blobs import Blobs
from recorder.storage.conditions import in_tenant
from recorder.storage.database import Database, open_database
from recorder.storage.deployment import check_deployment
from recorder.storage.lake import Lake
from recorder.storage.lake_reads import retry_lake_read
from recorder.storage.store_regions import check_store_regions
from recorder.supervisor.run_records import SERVICE, read_run_record
from recorder.tenant import Tenant

State = Literal["ok", "warning", "error"]

#: Below this share of free space, or these bytes, a disk counts as nearly full.
_FREE_SHARE, _FREE_BYTES = 0.05, 2_000_000_000
#: Clocks that differ by more order sessions and leases wrongly.
_CLOCK_TOLERANCE = timedelta(seconds=5)
#: A lease that ended this long ago belongs to a process that was killed.
_LEASE_GRACE_MS = 60_000
#: Sessions, and objects of frames, that are compared one by one in each workspace and mode.
_SAMPLED = 200
_SHOWN = 3


class Finding(NamedTuple):
    """Result of one check."""

    check: str
    state: State
    message: str
    #: What the operator does next; empty where nothing is to be done.
    fix: str = ""


@dataclass(frozen=True)
class Ports:
    """Ports on which `recorder up` would listen."""

    host: str = "127.0.0.1"
    api: int = 8700
    dagster: int = 3000


def examine_deployment(
    settings: Settings, *, ports: Ports | None = None, seed: int | None = None
) -> Iterator[Finding]:
    """Yield the findings of all checks; a check whose part does not answer is left out after saying so.

    Args:
        settings: deployment to check.
        ports: ports to check.
        seed: seed that selects the compared sessions; by default a random one.
    """
    yield from check_environment_variables()
    yield from check_data_folder(settings)
    yield from check_backups(settings)
    blobs, lake = Blobs(settings.blob_url, archive_url=settings.cold_url), Lake(settings.lake_url)
    yield from check_stores(settings, blobs, lake)
    try:
        database = open_database(settings, create=False)
    except RecorderError as error:
        yield Finding("database", "error", str(error), "Start the database, or correct the setting.")
    else:
        try:
            yield from _check_database(settings, database, blobs, lake, random.Random(seed))  # noqa: S311
        finally:
            database.close()
    yield from check_ports(settings, ports or Ports())


def check_environment_variables() -> Iterator[Finding]:
    """Yield a finding for each variable that has the prefix of settings and is none."""
    sentences = unknown_settings()
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
    usage = shutil.disk_usage(data)
    free = f"{usage.free / 1e9:.1f} GB of {usage.total / 1e9:.1f} GB are free in {data}."
    if usage.free < max(_FREE_BYTES, _FREE_SHARE * usage.total):
        yield Finding("disk", "warning", free, "Free some space: a full disk answers uploads with 503.")
    else:
        yield Finding("disk", "ok", free)


def check_backups(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each recorded backup that is 30 days old: it may hold erased data."""
    old = find_old_backups(settings.data_dir)
    for record in old:
        message = f"The backup {record.id} of {clock.to_iso(record.moment)} in {record.to} is 30 days old."
        fix = f"It may hold erased data: `recorder backup {record.to} --keep 29` deletes it."
        yield Finding("backups", "warning", message, fix)
    count = len(read_backup_records(settings.data_dir))
    if not old and count:
        yield Finding("backups", "ok", f"None of {count} recorded backups is older than 30 days.")


def check_stores(settings: Settings, blobs: Blobs, lake: Lake) -> Iterator[Finding]:
    """Yield a finding for each store, after writing, reading and deleting an object in it."""
    stores = {
        "frames": blobs,
        "hosted exports": Blobs(settings.export_url),
        "archived frames": Blobs(settings.cold_url),
    }
    for name, store in stores.items():
        yield _check_part(name, f"The store {_without_password(store.url)}", partial(_probe_store, store))
    yield _check_part("lake", f"The lake {_without_password(lake.url)}", lake.ping)


def _probe_store(store: Blobs) -> None:
    key, content = f"health/{new_id('req')}", b"recorder doctor"
    store.put(key, content)
    try:
        if store.get(key) != content:
            raise Unavailable("The store")
    finally:
        store.delete(key)


def _check_part(check: str, title: str, probe: Callable[[], object]) -> Finding:
    try:
        probe()
    except Exception as error:  # clients of object stores have errors of their own
        fix = "Check the address, the network and the credentials of the store."
        return Finding(check, "error", f"{title} cannot be used ({type(error).__name__}).", fix)
    return Finding(check, "ok", f"{title} can be written, read and deleted from.")


def _without_password(url: str) -> str:
    """Return an address without its query, in which some stores carry credentials."""
    return url if "://" not in url else urlsplit(url)._replace(query="").geturl()


def _check_database(
    settings: Settings, database: Database, blobs: Blobs, lake: Lake, chance: random.Random
) -> Iterator[Finding]:
    yield Finding("database", "ok", f"The {database.dialect.name} database answers and has this schema.")
    try:
        check_deployment(settings, database)
        check_store_regions(settings, blobs, lake)
    except RecorderError as error:
        yield Finding("region", "error", str(error), "Start with the settings of this deployment.")
    else:
        yield Finding("region", "ok", f"Database and stores belong to the region {settings.region}.")
    try:
        with database.transaction(write=False) as db:
            yield from check_clocks(db)
            yield from find_overdue_leases(db)
            yield from check_service(settings, db)
            yield from check_overdue(db)
        yield from check_contents(database, blobs, lake, chance)
    except RecorderError as error:
        yield Finding("database", "error", str(error), "Run `recorder doctor` again once it answers.")


def check_clocks(db: DbSession) -> Iterator[Finding]:
    """Yield a finding about this machine's clock, the database's, and the newest recorded time."""
    now = clock.now()
    seconds = db.connection().execute(text(_CLOCKS[db.get_bind().dialect.name])).scalar_one()
    difference = abs(clock.now() - datetime.fromtimestamp(float(seconds), tz=now.tzinfo))
    newest = db.exec(select(func.max(SessionRow.created_at))).one()
    fix = "Set both clocks by NTP."
    if difference > _CLOCK_TOLERANCE:
        seconds_apart = difference.total_seconds()
        message = f"The clocks of this machine and of the database differ by {seconds_apart:.0f} s."
        yield Finding("clocks", "error", message, fix)
    elif newest is not None and newest - now > _CLOCK_TOLERANCE:
        message = f"The newest session was created at {clock.to_iso(newest)}, which is in the future."
        yield Finding("clocks", "error", message, fix)
    else:
        yield Finding("clocks", "ok", "The clocks of this machine and of the database agree.")


#: Seconds since 1970 by the clock of the database.
_CLOCKS = {
    "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
}


def find_overdue_leases(db: DbSession) -> Iterator[Finding]:
    """Yield a finding about leases whose process ended without releasing them while work waits."""
    now_ms = clock.now_ms()
    held = db.exec(select(func.count()).where(col(LeaseRow.expires_ms) > now_ms)).one()
    overdue = db.exec(
        select(LeaseRow.name, LeaseRow.owner).where(
            col(LeaseRow.expires_ms).between(1, now_ms - _LEASE_GRACE_MS), LeaseRow.owner != ""
        )
    ).all()
    waiting = {lane.name for lane, _ in lanes.waiting_lanes(db)}
    stuck = [name for name, _ in overdue if name in waiting]
    if stuck:
        message = f"{counted(len(stuck), 'sealing lane')} with an ended run: {_name_some(stuck)}."
        yield Finding("leases", "warning", message, "Start Dagster: its next run takes them over.")
    else:
        yield Finding("leases", "ok", f"Leases held now: {held}.")


def check_service(settings: Settings, db: DbSession) -> Iterator[Finding]:
    """Yield the warnings that `/readyz` lists: Dagster, sensors, backlog, sessions set aside."""
    if settings.is_embedded and read_run_record(settings.data_dir, SERVICE) is None:
        yield Finding("service", "ok", "The service is stopped; `recorder up` starts it.")
        return
    warnings = list_warnings(read_service_state(db))
    for warning in warnings:
        message, _, fix = warning.message.partition(". ")
        yield Finding(warning.code.replace("_", " "), "warning", f"{message.rstrip('.')}.", fix)
    if not warnings:
        yield Finding("sealing", "ok", "Dagster reports, and no session waits for long or was set aside.")


def check_overdue(db: DbSession) -> Iterator[Finding]:
    """Yield findings about erasures past their date, and about purges that are open for too long."""
    overdue = count_overdue(db)
    fix = "`recorder retention run` works on them, and logs what they wait for."
    if overdue.erasures:
        since = f"{overdue.next_due_by:%Y-%m-%d}"
        message = f"Erasures past their `due_by`: {overdue.erasures}, the first since {since}."
        yield Finding("erasures", "error", message, fix)
    if overdue.purges:
        message = f"Purges that are open for more than an hour: {overdue.purges}."
        yield Finding("erasures", "warning", message, fix)
    if overdue.late_rewrites:
        message = f"Erasures that have waited for days for tables to be rewritten: {overdue.late_rewrites}."
        fix = "`recorder retention run --rewrite` rewrites them, and says which tables are left and why."
        yield Finding("erasures", "warning", message, fix)
    if not (overdue.erasures or overdue.purges or overdue.late_rewrites):
        waiting = overdue.waiting_rewrites
        message = f" {waiting} wait for tables to be rewritten in the quiet hour." if waiting else ""
        yield Finding("erasures", "ok", f"No erasure and no purge is overdue.{message}")


def check_contents(database: Database, blobs: Blobs, lake: Lake, chance: random.Random) -> Iterator[Finding]:
    """Yield a finding for each workspace and mode: sealed sessions in SQL against the lake and the blobs.

    All ids are compared; rows and objects of frames are compared for a random sample of sessions.
    """
    with database.transaction(write=False) as db:
        groups = db.exec(select(SessionRow.workspace_id, SessionRow.mode).distinct()).all()
    for workspace_id, mode in sorted(groups):
        tenant = Tenant(workspace_id, mode)
        problems = list(_compare_tenant(database, blobs, lake, tenant, chance))
        yield from problems
        if not problems:
            yield Finding("contents", "ok", f"SQL, lake and frames of {workspace_id} ({mode}) agree.")


def _compare_tenant(
    database: Database, blobs: Blobs, lake: Lake, tenant: Tenant, chance: random.Random
) -> Iterator[Finding]:
    name = f"{tenant.workspace_id} ({tenant.mode})"
    sealed = _read_sealed(database, tenant)
    try:
        in_lake = retry_lake_read(lambda: lake.scan("sessions", tenant).select("session_id").collect())
        missing = sealed.join(in_lake, on="session_id", how="anti")["session_id"].to_list()
        if missing:
            message = (
                f"The lake lacks {counted(len(missing), 'sealed session')} of {name}: {_name_some(missing)}."
            )
            yield Finding("contents", "error", message, "Restore the lake from a backup of the same time.")
        sample = sealed.filter(~pl.col("session_id").is_in(missing))
        sample = sample.sample(min(_SAMPLED, sample.height), seed=chance.getrandbits(32))
        wrong = _find_wrong_counts(lake, tenant, sample)
        if wrong:
            message = f"Rows of {counted(len(wrong), 'session')} of {name} differ: {_name_some(wrong)}."
            yield Finding("contents", "error", message, "Restore the lake from a backup of the same time.")
        gone = _find_missing_objects(lake, blobs, tenant, sample)
        if gone:
            message = (
                f"The store lacks {counted(len(gone), 'object')} with frames of {name}: {_name_some(gone)}."
            )
            yield Finding("contents", "error", message, "Restore the store of frames.")
    except RecorderError as error:
        yield Finding("contents", "error", str(error), "Run `recorder doctor` again once it answers.")


def _read_sealed(database: Database, tenant: Tenant) -> pl.DataFrame:
    columns = {"session_id": pl.String, "events": pl.Int64, "frames": pl.Int64}
    statement = select(SessionRow.id, SessionRow.event_count, SessionRow.frame_count).where(
        *in_tenant(SessionRow, tenant),
        SessionRow.status == "sealed",
        col(SessionRow.deleted_at).is_(None),
    )
    with database.transaction(write=False) as db:
        return pl.DataFrame(db.exec(statement).all(), schema=columns, orient="row")


def _find_wrong_counts(lake: Lake, tenant: Tenant, sample: pl.DataFrame) -> list[str]:
    """Return the sessions of which the lake has other numbers of events or frames than SQL."""

    def count_rows(kind: Literal["events", "frames"]) -> pl.DataFrame:
        rows = lake.scan(kind, tenant).filter(pl.col("session_id").is_in(sample["session_id"].implode()))
        return rows.group_by("session_id").agg(pl.len().cast(pl.Int64).alias("n")).collect()

    wrong: set[str] = set()
    for kind in ("events", "frames"):
        counts = retry_lake_read(partial(count_rows, kind))
        joined = sample.join(counts, on="session_id", how="left").with_columns(pl.col("n").fill_null(0))
        wrong |= set(joined.filter(pl.col("n") != pl.col(kind))["session_id"])
    return sorted(wrong)


def _find_missing_objects(lake: Lake, blobs: Blobs, tenant: Tenant, sample: pl.DataFrame) -> list[str]:
    """Return the keys of objects that hold frames of the sample and are not in the store."""

    def read_keys() -> pl.DataFrame:
        rows = lake.scan("frames", tenant).filter(pl.col("session_id").is_in(sample["session_id"].implode()))
        return rows.select(pl.col("object").unique()).collect()

    keys = retry_lake_read(read_keys)["object"].drop_nulls().sort()
    return [key for key in keys.head(_SAMPLED) if not _has_object(blobs, key)]


def _has_object(blobs: Blobs, key: str) -> bool:
    try:
        blobs.get(key, 0, 1)
    except KeyError:
        return False
    return True


def check_ports(settings: Settings, ports: Ports) -> Iterator[Finding]:
    """Yield a finding for each port that `recorder up` would listen on, unless it runs already."""
    record = read_run_record(settings.data_dir, SERVICE)
    if record is not None:
        message = f"The service runs as process {record['process']} at {record.get('api', 'no address yet')}."
        yield Finding("ports", "ok", message)
        return
    for option, port in (("--port", ports.api), ("--dagster-port", ports.dagster)):
        if _is_free(ports.host, port):
            yield Finding("ports", "ok", f"Port {port} is free for `recorder up`.")
        else:
            message = f"Another program listens on port {port}."
            yield Finding("ports", "warning", message, f"Stop it, or give `recorder up` another {option}.")


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _name_some(names: list[str]) -> str:
    return ", ".join(sorted(names)[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
