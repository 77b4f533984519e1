"""The service with one thing changed: what its ingest is measured against. Run by `uvicorn --factory`."""

from fastapi import FastAPI

from api.app import create_app
from recorder.recording import ingest
from recorder.recording.ingest import IngestBatch, IngestWriter

_ANSWER = (
    b'{"accepted":100,"duplicates":0,"first_id":"evt_01k00000000000000000000000",'
    b'"last_id":"evt_01k0000000000000000000003z","event_count":100}'
)


def null_store() -> FastAPI:
    """Return an application whose `submit` answers at once and stores nothing; the route does all else."""
    IngestWriter.submit = _submit_nothing  # type: ignore[assignment]
    return create_app()


def commit_per_request() -> FastAPI:
    """Return the same route and the same rows, but each request has a transaction of its own."""
    ingest._MAX_GROUP = 1
    return create_app()


async def _submit_nothing(writer: IngestWriter, batch: IngestBatch) -> bytes:
    return _ANSWER
