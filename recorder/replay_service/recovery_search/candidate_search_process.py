"""Process that searches for the candidates of a recovery within limits of memory and time. Decision 0044.

A search reads the memory graph and the recordings of up to thirty sessions, which clients sent: it must
neither keep replays waiting nor take the memory of the replay drain run. The process reads database, lake and
snapshots itself.
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from recorder.errors import NotFound, Unavailable
from recorder.limited_process import ProcessEnded, read_peak_memory, serve_limited_process
from recorder.recording.sessions import find_session
from recorder.replay_service.recordings.failed_sessions import SessionFailure
from recorder.replay_service.recovery_search.candidates import PointTime, list_recovery_candidates
from recorder.replay_service.task_process import TaskProcess
from recorder.replays.recorded_session import InvalidRecording
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.storage.blobs import Blobs
from recorder.storage.database import Database
from recorder.storage.lake import Lake
from recorder.tenant import Tenant

#: Memory and time of a search; it takes less than a second, and the process three to start. delta-rs reserves
#: more than 1 GiB of address space, which counts and is not used.
MEMORY_BYTES = 3 * 1024**3
SECONDS = 60.0
_NICENESS = 10
#: A process that ever held more, such as a large graph, is not used again: it would have less left.
_MOST_KEPT_BYTES = 768 * 1024**2


class SearchStores(msgspec.Struct, frozen=True):
    """Addresses of the stores of a deployment."""

    data_dir: str
    database_url: str
    lake_url: str
    blob_url: str
    cold_url: str


class SearchTask(msgspec.Struct, kw_only=True):
    """A failed session, and where its deployment has it."""

    stores: SearchStores
    tenant: Tenant
    session_id: str
    failure_tag: str | None
    failed_at_ms: int
    point_session_id: str | None = None
    point_t_ms: int | None = None
    #: Leave candidates out whose recordings are in a store that does not answer.
    skip_unavailable: bool = False


class SearchReply(msgspec.Struct):
    """Candidates of a failed session, the best first; without them, what there is instead."""

    candidates: list[dict[str, Any]] | None = None
    #: The session was deleted.
    is_gone: bool = False
    #: Why the session cannot be searched for.
    invalid: str = ""
    #: Kind of error, if a defect of the service ended the search.
    error: str = ""
    #: A store did not answer.
    is_unavailable: bool = False
    #: The most memory that the process held so far.
    peak_bytes: int = 0


def serve_candidate_searches(memory_bytes: int) -> None:
    """Search for what standard input names, until it ends."""
    serve_limited_process(_answer_candidate_search, memory_bytes)


def serve_long_candidate_search(memory_bytes: int) -> None:
    """Search slowly while others need the processors."""
    os.nice(_NICENESS)
    serve_candidate_searches(memory_bytes)


class SearchProcess(TaskProcess[SearchTask, SearchReply]):
    """Process that searches for candidates."""

    serve = serve_candidate_searches
    serve_long = serve_long_candidate_search
    memory_bytes = MEMORY_BYTES
    seconds = SECONDS

    def _read_reply(self, answer: bytes | ProcessEnded) -> SearchReply:
        if isinstance(answer, ProcessEnded):
            return SearchReply(invalid=f"The search for candidates takes more than {self._limits}.")
        reply = msgspec.json.decode(answer, type=SearchReply)
        if reply.peak_bytes > _MOST_KEPT_BYTES:
            self.end()
        return reply


def _answer_candidate_search(message: bytes) -> bytes:
    task = msgspec.json.decode(message, type=SearchTask)
    try:
        reply = SearchReply(_search_candidates(task))
    except NotFound:
        reply = SearchReply(is_gone=True)
    except InvalidRecording as error:
        reply = SearchReply(invalid=str(error))
    except Unavailable:
        reply = SearchReply(is_unavailable=True)
    except MemoryError:
        raise
    except Exception as error:  # a defect of the service, or damaged files
        reply = SearchReply(error=f"{type(error).__name__}: {error}")
    reply.peak_bytes = read_peak_memory()
    return msgspec.json.encode(reply)


def _search_candidates(task: SearchTask) -> list[dict[str, Any]]:
    runtime = _open_candidate_search_stores(task.stores)
    with runtime.database.transaction(write=False) as db:
        session = find_session(db, task.tenant, task.session_id)
    point = None
    if task.point_session_id is not None and task.point_t_ms is not None:
        point = PointTime(task.point_session_id, task.point_t_ms)
    failure = SessionFailure(task.failure_tag, task.failed_at_ms)
    return list_recovery_candidates(runtime, session, failure, point, skip_unavailable=task.skip_unavailable)


@lru_cache(maxsize=1)
def _open_candidate_search_stores(stores: SearchStores) -> Runtime:
    """Return the stores that the parent has open, which has checked schema and region."""
    settings = Settings(
        data_dir=Path(stores.data_dir),
        database_url=stores.database_url,
        blob_url=stores.blob_url,
        lake_url=stores.lake_url,
        export_url="",
        cold_url=stores.cold_url,
        local_export_root=None,
        secret=b"",
    )
    blobs = Blobs(stores.blob_url, archive_url=stores.cold_url)
    return Runtime(settings, Database(stores.database_url), blobs, Lake(stores.lake_url))
