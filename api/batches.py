"""Answers to batches of events and frames. Contract §1 (idempotency), §3."""

from fastapi import Response

from recorder.recording.batch_keys import Replayed


def accepted(answer: bytes) -> Response:
    """202 with the batch's answer; a batch that was sent before is marked as such."""
    headers = {"Idempotent-Replayed": "true"} if isinstance(answer, Replayed) else None
    return Response(answer, 202, headers, "application/json")
