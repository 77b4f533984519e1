"""The client of the HTTP interface: upload recordings, query the memory graph, export. Spec §4, design §2."""

from recorder.client.client import Client, SessionRecorder
from recorder.client.errors import ApiError, BufferFull, ClientError, ExportFailed, TookTooLong, Unreachable
from recorder.client.upload_batches import CapturedFrame

__all__ = [
    "ApiError",
    "BufferFull",
    "CapturedFrame",
    "Client",
    "ClientError",
    "ExportFailed",
    "SessionRecorder",
    "TookTooLong",
    "Unreachable",
]
