"""State of Dagster as Dagster's side reports it: what the API, which does not know Dagster, can warn of."""

from datetime import datetime
from typing import Literal

from sqlmodel import Field, SQLModel

Kind = Literal["sensor", "schedule", "daemon"]


class OrchestrationStatusRow(SQLModel, table=True):
    """One sensor, schedule or daemon of this deployment."""

    __tablename__ = "orchestration_status"
    __table_args__ = {"sqlite_with_rowid": False}

    kind: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    #: `on` or `off`; a daemon is always `on`.
    state: str
    #: When a sensor or schedule was looked at, and when a daemon sent its last heartbeat.
    seen_at: datetime
