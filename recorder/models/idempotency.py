"""The answers that are kept for requests with an Idempotency-Key. Contract §1 (idempotency)."""

from datetime import datetime

from sqlalchemy import LargeBinary
from sqlmodel import Field, SQLModel


class IdempotencyRow(SQLModel, table=True):
    """A key of a POST and the answer that it was given, kept 24 hours.

    Key and body are kept as keyed digests: people type names and addresses into both.
    """

    __tablename__ = "idempotency_keys"

    workspace_id: str = Field(primary_key=True)
    mode: str = Field(primary_key=True)
    method: str = Field(primary_key=True)
    #: The address as the documentation writes it, with `{session_id}`.
    path: str = Field(primary_key=True)
    #: Digest of the concrete path and the key: the same key at another address is another one.
    key: str = Field(primary_key=True)
    body_digest: bytes = Field(sa_type=LargeBinary)
    status: int | None = None
    #: The body, with null in the place of secrets.
    answer: bytes | None = Field(default=None, sa_type=LargeBinary)
    #: The session that the answer shows: whoever erases it finds the answer by this.
    resource_id: str | None = Field(default=None, index=True)
    created_at: datetime = Field(index=True)
