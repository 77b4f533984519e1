"""Portions of large sessions that are prepared for sealing and not committed yet. Design §3."""

from sqlalchemy import LargeBinary
from sqlmodel import Field, SQLModel


class SealPortionRow(SQLModel, table=True):
    """A finished portion of one session: a killed run's successor goes on behind the last one."""

    __tablename__ = "seal_portions"
    __table_args__ = {"sqlite_with_rowid": False}

    session_id: str = Field(primary_key=True)
    #: 0, 1, 2 … in the order in which they were finished.
    n: int = Field(primary_key=True)
    #: Partition of the lake that the portion's files lie in.
    date: str
    #: zstd of a JSON object: the files, and what cannot be computed again cheaply.
    state: bytes = Field(sa_type=LargeBinary)
