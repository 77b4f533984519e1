"""Examination of a deployment: database, stores, leases, clocks, secrets, overdue work. Contract §9.

Each check yields findings: one line each, with the next step where something is wrong. Checks read, except
that a store is tested by writing one object and deleting it.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from urllib.parse import urlsplit

from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import func, text
from sqlmodel import Session as DbSession
from sqlmodel import col, or_, select

from recorder import clock
from recorder.doctor.findings import Finding, join_names
from recorder.doctor.lake_comparison import compare_sealed_with_lake
from recorder.doctor.machine import (
    Ports,
    check_backups,
    check_browser,
    check_data_folder,
    check_environment_variables,
    check_ports,
    check_secret_file,
)
from recorder.errors import RecorderError, Unavailable
from recorder.governance.archive import ArchiveNotApart, require_separate_archive
from recorder.governance.overdue import count_overdue
from recorder.governance.purging.due_sessions import list_due_sessions
from recorder.ids import new_id
from recorder.models.operations import LeaseRow
from recorder.models.session import SessionRow
from recorder.models.webhook import WebhookSecretRow
from recorder.models.workspace import WorkspaceRow
from recorder.number_formats import format_count
from recorder.sealing import lanes
from recorder.service_state import list_warnings, read_service_state
from recorder.settings import Settings
from recorder.storage.blobs import Blobs
from recorder.storage.database import Database, open_database
from recorder.storage.deployment import OtherSecret, check_deployment_record, check_deployment_secret
from recorder.storage.lake import Lake
from recorder.storage.store_regions import StoreAway, check_store_regions, require_store_marks
from recorder.supervisor.run_records import SERVICE, read_run_record
from recorder.webhooks.subscriptions import WebhookSecretBox

#: A daily run removes what is due. What was due before this time is late.
_RETENTION_TIME = timedelta(days=2)
#: Clocks that differ by more order sessions and leases wrongly.
_CLOCK_TOLERANCE = timedelta(seconds=5)
#: A lease that ended this long ago belongs to a process that was killed.
_LEASE_GRACE_MS = 60_000
#: How long Redis may take to answer.
_REDIS_S = 2.0


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
    yield from check_secret_file(settings)
    yield from check_backups(settings)
    blobs, lake = Blobs(settings.blob_url, archive_url=settings.cold_url), Lake(settings.lake_url)
    yield from examine_stores(settings, blobs, lake)
    try:
        database = open_database(settings, create=False)
    except RecorderError as error:
        yield Finding("database", "error", str(error), "Start the database, or correct the setting.")
    else:
        try:
            yield from _examine_database(settings, database, blobs, lake, random.Random(seed))  # noqa: S311
        finally:
            database.close()
    yield from examine_redis(settings)
    yield from check_ports(settings, ports or Ports())


def examine_redis(settings: Settings) -> Iterator[Finding]:
    """Yield a finding about the Redis that API processes share, if the settings name one."""
    if settings.redis_url is None:
        return
    patience = {"socket_timeout": _REDIS_S, "socket_connect_timeout": _REDIS_S}
    with closing(Redis.from_url(settings.redis_url, **patience)) as redis:
        try:
            redis.ping()
        except RedisError as error:
            message = f"The Redis that RECORDER_REDIS_URL names does not answer ({type(error).__name__})."
            fix = "Start it, or correct the setting; until then each API process counts its limits alone."
            yield Finding("redis", "error", message, fix)
        else:
            yield Finding("redis", "ok", "The Redis that API processes share answers.")


def examine_stores(settings: Settings, blobs: Blobs, lake: Lake) -> Iterator[Finding]:
    """Yield a finding for each store, after writing, reading and deleting an object in it."""
    stores = {
        "frames": blobs,
        "hosted exports": Blobs(settings.export_url),
        "archived frames": Blobs(settings.cold_url),
    }
    for name, store in stores.items():
        yield _examine_store_access(
            name,
            f"The store {_remove_query_of_examined_url(store.url)}",
            partial(_probe_examined_store, store),
        )
    is_archive_apart = "://" in settings.blob_url and "://" not in settings.cold_url
    if is_archive_apart and settings.cold_storage_class is None and not settings.is_embedded:
        message = f"Archived frames go to the folder {settings.cold_url}, which other machines cannot read."
        fix = "Set RECORDER_COLD_URL to an address in the store of frames, before frames are archived."
        yield Finding("archived frames", "warning", message, fix)
    if settings.cold_storage_class is None:
        yield from _examine_archive_place(blobs.url, settings.cold_url)
    yield _examine_store_access("lake", f"The lake {_remove_query_of_examined_url(lake.url)}", lake.ping)


def _examine_archive_place(frames_url: str, archive_url: str) -> Iterator[Finding]:
    """Yield a finding if frames and archived frames have one place."""
    try:
        require_separate_archive(frames_url, archive_url)
    except ArchiveNotApart as error:
        message, _, fix = f"{error}".partition(". ")
        yield Finding("archived frames", "error", f"{message}.", fix)
    except Unavailable:
        return  # a finding of its own says so


def _probe_examined_store(store: Blobs) -> None:
    key, content = f"health/{new_id('req')}", b"recorder doctor"
    store.put(key, content)
    try:
        if store.get(key) != content:
            raise Unavailable("The store")
    finally:
        store.delete(key)


def _examine_store_access(check: str, title: str, probe: Callable[[], object]) -> Finding:
    try:
        probe()
    except Exception as error:  # clients of object stores have errors of their own
        fix = "Check the address, the network and the credentials of the store."
        return Finding(check, "error", f"{title} cannot be used ({type(error).__name__}).", fix)
    return Finding(check, "ok", f"{title} can be written, read and deleted from.")


def _remove_query_of_examined_url(url: str) -> str:
    """Return an address without its query, in which some stores carry credentials."""
    return url if "://" not in url else urlsplit(url)._replace(query="").geturl()


def _examine_database(
    settings: Settings, database: Database, blobs: Blobs, lake: Lake, chance: random.Random
) -> Iterator[Finding]:
    yield Finding(
        "database", "ok", f"The {_TITLES[database.dialect.name]} database answers and has this schema."
    )
    try:
        check_deployment_record(settings, database)
        check_store_regions(settings, blobs, lake, marks_new=False)
        require_store_marks(settings)
    except StoreAway as error:
        message, _, fix = f"{error}".partition(". ")
        yield Finding("stores", "error", f"{message}.", fix)
    except RecorderError as error:
        yield Finding("region", "error", str(error), "Start with the settings of this deployment.")
    else:
        yield Finding("region", "ok", f"Database and stores belong to the region {settings.region}.")
    try:
        yield from examine_secret(settings, database)
        with database.transaction(write=False) as db:
            yield from examine_clocks(db)
            yield from examine_overdue_leases(db)
            yield from examine_service_warnings(settings, db)
            yield from examine_overdue_removals(db)
            is_browser_wanted = _is_browser_examination_needed(db)
        yield from examine_late_retention(database)
        # A browser may take seconds to start, too long for a transaction.
        yield from check_browser(settings, is_wanted=is_browser_wanted)
        yield from compare_sealed_with_lake(database, blobs, lake, chance)
    except RecorderError as error:
        yield Finding("database", "error", str(error), "Run `recorder doctor` again once it answers.")


def examine_clocks(db: DbSession) -> Iterator[Finding]:
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


_TITLES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
#: Seconds since 1970 by the clock of the database.
_CLOCKS = {
    "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
}


def examine_secret(settings: Settings, database: Database) -> Iterator[Finding]:
    """Yield a finding about the deployment's secret, and the signing secrets of webhooks that it encrypts."""
    try:
        check_deployment_secret(settings, database, store=False)
    except OtherSecret as error:
        sentence, _, fix = f"{error}".partition(". ")
        yield Finding("secret", "error", f"{sentence}.", fix)
        return
    secret = WebhookSecretRow
    signing = or_(col(secret.expires_at).is_(None), col(secret.expires_at) > clock.now())
    is_foreign = col(secret.key_id) != WebhookSecretBox(settings.secret).key_id
    with database.transaction(write=False) as db:
        count, foreign = db.exec(
            select(func.count(), func.count().filter(is_foreign)).select_from(secret).where(signing)
        ).one()
    if foreign:
        message = f"Signing secrets of webhooks that another RECORDER_SECRET encrypted: {foreign} of {count}."
        fix = "Start every process with the secret of this deployment; if it is lost, rotate these secrets."
        yield Finding("secret", "error", message, fix)
    else:
        read = "there are no webhook secrets to read"
        if count:
            read = f"it reads {format_count(count, 'webhook secret')}"
        yield Finding("secret", "ok", f"The deployment's secret fits; {read}.")


def _is_browser_examination_needed(db: DbSession) -> bool:
    """Return whether a workspace allows hosts for live replays."""
    return any(db.connection().execute(select(col(WorkspaceRow.live_hosts))).scalars())


def examine_overdue_leases(db: DbSession) -> Iterator[Finding]:
    """Yield a finding about leases whose process ended without releasing them while work waits."""
    now_ms = clock.now_ms()
    overdue = db.exec(
        select(LeaseRow.name, LeaseRow.owner).where(
            col(LeaseRow.expires_ms).between(1, now_ms - _LEASE_GRACE_MS), LeaseRow.owner != ""
        )
    ).all()
    waiting = {lane.name for lane, _ in lanes.list_waiting_lanes(db)}
    stuck = [name for name, _ in overdue if name in waiting]
    if stuck:
        message = f"{format_count(len(stuck), 'sealing lane')} with an ended run: {join_names(stuck)}."
        yield Finding("leases", "warning", message, "Start Dagster: its next run takes them over.")
    else:
        yield Finding("leases", "ok", "No work waits for a run that has ended.")


def examine_service_warnings(settings: Settings, db: DbSession) -> Iterator[Finding]:
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


def examine_overdue_removals(db: DbSession) -> Iterator[Finding]:
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


def examine_late_retention(database: Database) -> Iterator[Finding]:
    """Yield a finding for each workspace with sessions that retention should have removed days ago."""
    with database.transaction(write=False) as db:
        workspaces = db.exec(select(WorkspaceRow).order_by(col(WorkspaceRow.id))).all()
    late = []
    for workspace in workspaces:
        pages = list_due_sessions(database, workspace, at=clock.now() - _RETENTION_TIME)
        if any(not session.is_held for page in pages for session in page):
            late.append(workspace.id)
    if late:
        message = f"Sessions of {join_names(late)} should have been removed two days ago or earlier."
        fix = (
            "The schedule `daily_retention` removes them; `recorder retention run` does it now, and says "
            "what fails."
        )
        yield Finding("retention", "warning", message, fix)
    else:
        yield Finding("retention", "ok", "No session is in the service for days after its time.")
