"""Frames: captured screens and the location of their bytes. Spec §2.11, contract §3 (frame item)."""

import builtins
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import JSON, BigInteger, Index, LargeBinary
from sqlmodel import Field, SQLModel

from recorder import limits
from recorder.models.event import BYTEWISE, Elapsed, ElementRect
from recorder.models.wire import WireOutput

ClientFrameId = Annotated[str, Meta(extra_json_schema={"pattern": limits.CLIENT_FRAME_ID_PATTERN})]


class FrameItem(Struct, forbid_unknown_fields=True):
    """One frame as a client sends it: the bytes are in `data` (base64) or in the part named `part`."""

    t_ms: Elapsed
    content_type: Annotated[str, Meta(extra_json_schema={"enum": list(limits.IMAGE_TYPES)})]
    id: ClientFrameId | UnsetType | None = UNSET
    width: Annotated[int, Meta(ge=1, le=100000)] | UnsetType | None = UNSET
    height: Annotated[int, Meta(ge=1, le=100000)] | UnsetType | None = UNSET
    keyframe: bool | UnsetType | None = UNSET
    data: str | UnsetType | None = UNSET
    part: str | UnsetType | None = UNSET
    dom: dict[str, Any] | UnsetType | None = UNSET
    url: str | UnsetType | None = UNSET
    active_rect: ElementRect | UnsetType | None = UNSET
    masked_rects: list[ElementRect] | UnsetType | None = UNSET


class Frame(WireOutput):
    """A frame as it is read back; its bytes are under `/image`."""

    id: str
    session_id: str
    t_ms: int
    content_type: str
    width: int
    height: int
    bytes: int
    sha256: str
    keyframe: bool | None
    url: str | None
    active_rect: list[int | float] | None
    masked_rects: list[list[int | float]] | None
    has_dom: bool


class FrameRow(SQLModel, table=True):
    """Index row of one frame: its position in the object of its upload batch."""

    __tablename__ = "frames"
    __table_args__ = (
        Index("ix_frames_order", "session_id", "t_ms", "frame_id"),
        Index("ix_frames_position", "session_id", "position"),
        Index("ix_frames_picture", "session_id", "sha256"),
    )

    session_id: str = Field(primary_key=True)
    #: Ordered by its bytes, as in the lake: an order of words would differ between databases.
    frame_id: str = Field(primary_key=True, sa_type=BYTEWISE)
    position: int = Field(sa_type=BigInteger)
    t_ms: int = Field(sa_type=BigInteger)
    content_type: str
    width: int
    height: int
    keyframe: bool | None = None
    bytes: int
    sha256: str
    #: Key of the object and the position of the image in it.
    object: str
    offset: int = Field(sa_type=BigInteger)
    length: int
    #: Position of the zstd-compressed DOM snapshot in the same upload's object; null without one.
    dom_object: str | None = None
    dom_offset: int | None = Field(default=None, sa_type=BigInteger)
    dom_length: int | None = None
    url: str | None = None
    active_rect: list[int | float] | None = Field(default=None, sa_type=JSON)
    masked_rects: list[list[int | float]] | None = Field(default=None, sa_type=JSON)
    #: When it was stored; null on rows of the first release.
    received_ms: int | None = Field(default=None, sa_type=BigInteger)
    #: Digest of the item, to distinguish a repeated frame from a conflicting one; null on rows of releases
    #: that computed it only for items with an `id`.
    digest: builtins.bytes | None = Field(default=None, sa_type=LargeBinary)
