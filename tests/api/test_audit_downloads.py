"""Downloads of the audit log as NDJSON: limited and read like whole sessions. Contract §1, §7."""

import json
import socket
import threading
from contextlib import ExitStack, closing
from itertools import chain
from urllib.parse import urlsplit

import pytest

from api.streams.portioned_download import NDJSON
from recorder import limits
from recorder.audit import portions
from recorder.audit.log import AuditFilter, Origin, record_audit_entry
from recorder.audit.portions import AuditPortions
from recorder.runtime import Runtime
from tests.support.factories import Caller, assert_problem
from tests.support.query_plans import noted_statements
from tests.support.statements import before_each_statement
from tests.support.stream_clients import Streamer, StreamService
from tests.support.waiting import wait_for

AUDIT = "/v1/audit"


def write_log(runtime: Runtime, workspace_id: str, entries: int, *, text: str = "") -> None:
    """Add entries by `retention`, every third one a purge."""
    with runtime.database.transaction(write=True) as db:
        origin = Origin(workspace_id, "system", "retention")
        for number in range(entries):
            action = "session.delete" if number % 3 else "session.purge"
            record_audit_entry(
                db,
                origin,
                action,
                resource_type="session",
                resource_id=f"ses_{number}",
                details={"text": text},
            )


def begin_download(streamer: Streamer) -> socket.socket:
    """Ask for the log on a connection with a small buffer, and read nothing but the status."""
    address = urlsplit(streamer.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(20)
    connection.connect((address.hostname, address.port))
    head = [f"GET {AUDIT} HTTP/1.1", "Host: testserver", f"Accept: {NDJSON}"]
    head += [f"Authorization: Bearer {streamer.key.key}", "", ""]
    connection.sendall("\r\n".join(head).encode())
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def test_a_key_has_so_many_downloads_under_way(stream_service: StreamService, streamer: Streamer) -> None:
    # More than sockets and the service hold together.
    write_log(stream_service.runtime, streamer.key.workspace_id, 200, text="x" * 60_000)
    reads = stream_service.app.state.whole_reads
    with ExitStack() as stack:
        for _ in range(limits.WHOLE_READS_PER_KEY):
            stack.enter_context(closing(begin_download(streamer)))
        assert reads.count == limits.WHOLE_READS_PER_KEY
        refused = streamer.http.get(AUDIT, headers={"Accept": NDJSON})
        assert_problem(refused, 429, "rate_limited")
        assert refused.headers["x-scope"] == "per_key_concurrency"
        assert int(refused.headers["retry-after"]) >= 1
        # Pages and other workspaces go on.
        assert streamer.http.get(AUDIT).status_code == 200
        with stream_service.streamer() as other:
            assert other.http.get(AUDIT, headers={"Accept": NDJSON}).text == ""
    wait_for(lambda: reads.count == 0)
    whole = streamer.http.get(AUDIT, headers={"Accept": NDJSON})
    assert len(whole.content.splitlines()) == 200


def test_a_client_that_takes_nothing_is_cut_off(
    stream_service: StreamService, streamer: Streamer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WHOLE_READ_PATIENCE_S", 0.3)
    write_log(stream_service.runtime, streamer.key.workspace_id, 200, text="x" * 60_000)
    with closing(begin_download(streamer)) as connection:
        wait_for(lambda: stream_service.app.state.whole_reads.count == 0)
        with pytest.raises(ConnectionResetError):
            while connection.recv(1 << 20):
                pass


def test_the_log_is_read_in_the_thread_of_whole_reads(caller: Caller) -> None:
    write_log(caller.service.runtime, caller.key.workspace_id, 1_203)
    threads: list[str] = []

    def note(statement: str) -> None:
        if "FROM audit_entries" in statement:
            threads.append(threading.current_thread().name)

    with before_each_statement(note):
        assert len(caller.get(AUDIT, Accept=NDJSON).text.splitlines()) == 1_203
    assert len(threads) >= 3 and all(name.startswith("whole-reads") for name in threads)


def test_a_portion_has_a_bound_in_entries_bytes_and_entries_searched(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, workspace_id = caller.service.runtime.database, caller.key.workspace_id
    write_log(caller.service.runtime, workspace_id, 30)
    monkeypatch.setattr(portions, "SEARCHED_ENTRIES", 10)

    def read(**filters: str) -> list[list[str]]:
        whole = AuditPortions(database, AuditFilter(workspace_id=workspace_id, **filters))  # type: ignore[arg-type]
        parts = iter(whole.read, None)
        return [[json.loads(line)["resource"]["id"] for line in part.splitlines()] for part in parts]

    assert [len(part) for part in read()] == [10, 10, 10]
    with noted_statements() as noted:
        assert [len(part) for part in read(actor="operator")] == [0, 0, 0]
    assert sum("FROM audit_entries" in statement for statement, _ in noted) == 3
    assert list(chain(*read(action="session.purge"))) == [f"ses_{number}" for number in range(0, 30, 3)]
    monkeypatch.setattr(portions, "PORTION_ENTRIES", 4)
    assert [len(part) for part in read()] == [4] * 7 + [2]
    monkeypatch.setattr(portions, "PORTION_BYTES", 1)
    assert list(chain(*read())) == [f"ses_{number}" for number in range(30)] and len(read()) == 30
    assert AuditPortions(database, AuditFilter(workspace_id="wsp_none")).read() == b""
