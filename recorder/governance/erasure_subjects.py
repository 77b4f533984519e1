"""Subjects of erasures: comparison with texts, plain or masked, and keyed hashes. Contract §7."""

from collections.abc import Collection, Iterator
from typing import Any

import orjson
from sqlalchemy import ColumnElement, String, cast, func
from sqlmodel import Session as DbSession
from sqlmodel import col, or_, select

from recorder.encryption import decrypt, encrypt
from recorder.hashing import compute_keyed_digest
from recorder.masking.detectors import derive_masking_key, list_subject_digests, read_token_digits
from recorder.models.session import SessionMetadataRow, SessionRow
from recorder.storage.list_pages import stream_rows

_PURPOSE = "erasure-subjects"


class SubjectMatcher:
    """Comparison of a session's actor and metadata with a subject, and with the tokens that masked it."""

    def __init__(self, secret: bytes, workspace_id: str, subject: str, replacements: Collection[str]) -> None:
        self._subject = subject
        self._replacements = replacements
        self._digests = list_subject_digests(derive_masking_key(secret, workspace_id), subject)
        tokens = hash_tokens(secret, workspace_id, subject)
        self._hashes = frozenset((hash_subject(secret, workspace_id, subject), *tokens))
        self._parts = [orjson.dumps(subject).decode()[1:-1], *sorted(self._digests)]

    def find_sessions(self, db: DbSession, ids: Any) -> list[str]:
        """Return the sessions among these that name the subject, in the order of their ids.

        Recordings of replays whose purged sources named it are among them.

        Args:
            db: database session.
            ids: statement for the ids of the sessions, with a limit, so that it is executed by itself: else
                a planner may read the metadata of all workspaces, to search for these sessions among them.
        """
        actor, text = col(SessionRow.actor_id), cast(col(SessionMetadataRow.metadata_), String)
        hashes = cast(col(SessionMetadataRow.source_hashes), String)
        may_match = (
            actor == self._subject,
            *(_contains_subject_text(db, actor, part) for part in self._parts[1:]),
            *(_contains_subject_text(db, text, part) for part in self._parts),
            *(_contains_subject_text(db, hashes, each) for each in sorted(self._hashes)),
        )
        chosen = ids.subquery()
        statement = (
            select(
                SessionRow.id,
                SessionMetadataRow.source_hashes,
                SessionRow.actor_id,
                SessionMetadataRow.metadata_,
            )
            .select_from(chosen)
            .join(SessionRow, col(SessionRow.id) == chosen.c.id)
            .join(SessionMetadataRow, col(SessionMetadataRow.session_id) == chosen.c.id, isouter=True)
            .where(or_(*may_match))
        )
        # The database finds parts: the whole texts decide.
        return sorted(
            session_id
            for session_id, source_hashes, *values in stream_rows(db, statement)
            if not self._hashes.isdisjoint(source_hashes or ())
            or any(map(self._is_match, iterate_subject_texts(values)))
        )

    def _is_match(self, text: str) -> bool:
        return text == self._subject or read_token_digits(text, self._replacements) in self._digests


def _contains_subject_text(db: DbSession, text: Any, part: str) -> ColumnElement[bool]:
    """Return the condition that a text holds a part, in the same case."""
    is_sqlite = db.connection().dialect.name == "sqlite"
    position: ColumnElement[int] = (func.instr if is_sqlite else func.strpos)(text, part)
    return position > 0


def iterate_subject_texts(value: Any) -> Iterator[str]:
    """Yield every text of a value, without the names of members."""
    match value:
        case str():
            yield value
        case dict():
            for member in value.values():
                yield from iterate_subject_texts(member)
        case list():
            for member in value:
                yield from iterate_subject_texts(member)


def encrypt_subject(secret: bytes, subject: str, erasure_id: str) -> bytes:
    """Return a subject encrypted for its erasure, under a key of the deployment."""
    return encrypt(secret, _PURPOSE, subject.encode(), owner_id=erasure_id)


def decrypt_subject(secret: bytes, encrypted: bytes, erasure_id: str) -> str:
    """Return the subject that `encrypt_subject` encrypted for an erasure."""
    return decrypt(secret, _PURPOSE, encrypted, owner_id=erasure_id).decode()


def hash_subject(secret: bytes, workspace_id: str, subject: str) -> str:
    """Return the keyed hash of a subject."""
    return compute_keyed_digest(secret, "erasure-subject", f"{workspace_id}\0{subject}".encode()).hex()


def hash_tokens(secret: bytes, workspace_id: str, subject: str) -> list[str]:
    """Return the keyed hashes of the masking tokens of a subject."""
    digests = list_subject_digests(derive_masking_key(secret, workspace_id), subject)
    return sorted(_hash_token(secret, workspace_id, digits) for digits in digests)


def hash_texts(secret: bytes, workspace_id: str, value: Any, replacements: Collection[str]) -> set[str]:
    """Return the hashes that erasures of the texts of a value have, as subjects and as masking tokens.

    Args:
        secret: the deployment's secret.
        workspace_id: the workspace.
        value: actor and metadata of a session.
        replacements: texts that masking may put before a token.
    """
    texts = iterate_subject_texts(value)
    return {each for text in texts for each in _hash_erasable_text(secret, workspace_id, text, replacements)}


def _hash_erasable_text(
    secret: bytes, workspace_id: str, text: str, replacements: Collection[str]
) -> Iterator[str]:
    """Yield the hashes of a text: its own, and that of the token it has if it was masked."""
    yield hash_subject(secret, workspace_id, text)
    digits = read_token_digits(text, replacements)
    if digits is not None:
        yield _hash_token(secret, workspace_id, digits)


def _hash_token(secret: bytes, workspace_id: str, digits: str) -> str:
    """Return the keyed hash of a masking token's digits: the token itself is erased with the subject."""
    return compute_keyed_digest(secret, "erasure-token", f"{workspace_id}\0{digits}".encode()).hex()
