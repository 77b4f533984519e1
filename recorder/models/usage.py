"""Usage and quota: what a workspace used in a period, and what it may. Spec §2.9, §8.2; contract §7."""

from sqlalchemy import BigInteger
from sqlmodel import Field, SQLModel

from recorder.models.wire import WireOutput, WireTime

_ZERO = {"server_default": "0"}


class Quota(WireOutput):
    """What was used in the current period, and the limits; null means unlimited."""

    period_start: WireTime
    period_end: WireTime
    captured_minutes: int
    captured_minutes_limit: int | None
    exported_rows: int
    exported_rows_limit: int | None


class UsageRow(SQLModel, table=True):
    """What one workspace used in one period; made by the first use."""

    __tablename__ = "usage"
    __table_args__ = {"sqlite_with_rowid": False}

    workspace_id: str = Field(primary_key=True)
    #: `YYYY-MM`, UTC.
    period: str = Field(primary_key=True)
    captured_ms: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=_ZERO)
    exported_rows: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=_ZERO)
    #: Rows of plans whose export still runs.
    reserved_rows: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs=_ZERO)
    #: What was told of each metric: 0 nothing, 1 the warning, 2 that it is exhausted.
    captured_told: int = Field(default=0, sa_column_kwargs=_ZERO)
    exported_told: int = Field(default=0, sa_column_kwargs=_ZERO)
