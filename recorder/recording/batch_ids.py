"""Batch ids: a batch of events or frames that is sent twice is stored once. Contract §1 (idempotency)."""

from dataclasses import dataclass
from typing import Literal

from sqlmodel import Session as DbSession

from recorder import limits
from recorder.digest import keyed_digest
from recorder.errors import IdempotencyKeyReused, ValidationFailed
from recorder.models.event import BatchKeyRow
from recorder.recording.driver_cursor import Cursor


class Replayed(bytes):
    """The body of an answer that was given before: nothing was stored this time."""


@dataclass(frozen=True, slots=True)
class BatchKey:
    """The `Idempotency-Key` of a batch and the body it came with, as keyed digests.

    People type names into keys; and a body that was masked must not be found by trying what it may have held.
    """

    kind: Literal["events", "frames"]
    key: str
    body_digest: bytes

    @classmethod
    def of(
        cls, kind: Literal["events", "frames"], key: str | None, content: bytes, *, digest_key: bytes
    ) -> "BatchKey | None":
        """The batch id of a header's value; None where none was sent.

        Args:
            content: what a repeated batch must equal, as it was sent.

        Raises:
            ValidationFailed: if it is empty, too long or holds other than visible characters.
        """
        if key is None:
            return None
        if not 1 <= len(key) <= limits.BATCH_KEY_CHARACTERS or not all(
            "!" <= letter <= "~" for letter in key
        ):
            limit = limits.BATCH_KEY_CHARACTERS
            message = f"Idempotency-Key takes 1 to {limit} visible ASCII characters."
            raise ValidationFailed.of("Idempotency-Key", "invalid_string", message=message, where="header")
        name = keyed_digest(digest_key, "batch-key", key.encode())
        return cls(kind, name.hex(), keyed_digest(digest_key, "batch-body", content))

    def earlier_answer(self, cursor: Cursor, session_id: str) -> Replayed | None:
        """What this batch was answered before; the session must be known to be the caller's.

        Raises:
            IdempotencyKeyReused: if it came with another body then.
        """
        rows = cursor.all(_FIND, (session_id, self.kind, self.key))
        return self._check(*rows[0]) if rows else None

    def read_answer(self, db: DbSession, session_id: str) -> Replayed | None:
        """The same from a reading transaction: saves a repeated upload its work, decides nothing."""
        row = db.get(BatchKeyRow, (session_id, self.kind, self.key))
        return self._check(row.body_digest, row.answer) if row else None

    def keep(self, cursor: Cursor, session_id: str, answer: bytes) -> None:
        """Store the answer beside the batch, in its transaction."""
        cursor.many(_KEEP, [(session_id, self.kind, self.key, self.body_digest, answer)])

    def _check(self, digest: bytes, answer: bytes) -> Replayed:
        if bytes(digest) != self.body_digest:
            raise IdempotencyKeyReused
        return Replayed(answer)


_FIND = "SELECT body_digest, answer FROM batch_keys WHERE session_id = ? AND kind = ? AND batch_key = ?"
_KEEP = "INSERT INTO batch_keys (session_id, kind, batch_key, body_digest, answer) VALUES (?, ?, ?, ?, ?)"
