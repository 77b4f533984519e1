"""The limits in force, as they go over the wire. Spec §8.1, §8.3; contract §7."""

from pydantic import Field

from recorder.models.wire import WireOutput


class RateLimit(WireOutput):
    """One of the two limits of a surface: a token bucket."""

    limit: int = Field(description="Requests, or bytes, in a window, refilled continuously.")
    window_s: int
    burst: int = Field(description="Size of the bucket: so many at once.")


class Address(WireOutput):
    """A method and a path."""

    method: str
    path: str


class SurfaceLimits(WireOutput):
    """A surface: addresses that draw on the same two buckets, of the key and of its workspace."""

    surface: str
    method: str = Field(description="The first of `addresses`.")
    path: str
    addresses: list[Address]
    per_key: RateLimit
    per_workspace: RateLimit


class StreamLimits(WireOutput):
    """Number of streams that may be open at once."""

    per_key: int
    per_workspace: int


class WholeReadLimits(WireOutput):
    """Most reads of whole sessions that may be under way at once."""

    per_key: int
    per_workspace: int
    per_process: int = Field(description="Of all workspaces, in one API process.")


class PairOfRates(WireOutput):
    """Limits of a key and of its workspace: two token buckets."""

    per_key: RateLimit
    per_workspace: RateLimit


class WorkLimits(WireOutput):
    """Most requests that may be under way at once."""

    per_key: int
    per_workspace: int


class ConnectionLimits(WireOutput):
    """Most connections that may be open to one API process."""

    per_address: int = Field(
        description="Of one client address, streams included; of IPv6 its first 64 bits."
    )
    per_process: int = Field(
        description="Of all addresses. Beyond it the connection that has waited longest is closed."
    )


class BatchLimits(WireOutput):
    """The most items of one request; a batch is one request to the rate limits."""

    events: int
    frames: int
    batch_stop_ids: int


class SessionLimits(WireOutput):
    """The most that one session holds."""

    events: int
    frames: int
    bytes: int = Field(description="Event items as JSON, pictures and DOM snapshots together.")
    tags: int


class WorkspaceLimits(WireOutput):
    """The most that one workspace has."""

    workflows: int = Field(description="Of both modes together.")
    open_exports: int = Field(description="Queued or running, of both modes together.")
    open_replays: int = Field(description="Replays of one mode that have not ended; as many recoveries.")
    open_erasures: int = Field(description="Erasures that have not ended, of both modes together.")
    keys: int = Field(description="Valid ones of one mode.")
    masking_replacements: int = Field(
        description="Different replacements that its masking policies, and those of its workflows, have had."
    )


class WebhookLimits(WireOutput):
    """The most webhooks, and what may wait to be sent to one."""

    per_workspace: int
    pending_deliveries: int = Field(description="Of one webhook. Beyond it events are skipped and counted.")


class ByteLimits(WireOutput):
    """The most bytes of a request, and of parts of one."""

    request: int
    events_request: int
    frames_request: int
    event: int
    frame: int
    dom: int
    frame_members: int = Field(description="A frame's `url` and `masked_rects` together.")
    metadata: int
    tag_data: int


class ListLimits(WireOutput):
    """Items of a page."""

    default: int
    max: int


class Limits(WireOutput):
    """All limits that hold for the caller's workspace."""

    tier: str
    rate_limits: list[SurfaceLimits]
    body_bytes: PairOfRates = Field(
        description="Bytes of request bodies, whatever becomes of them; `limit` and `burst` are bytes."
    )
    concurrent_requests: WorkLimits = Field(description="Requests under way; streams are not among them.")
    concurrent_streams: StreamLimits
    whole_session_reads: WholeReadLimits
    open_connections: ConnectionLimits
    batch: BatchLimits
    session: SessionLimits
    workspace: WorkspaceLimits
    webhooks: WebhookLimits
    bytes: ByteLimits
    list: ListLimits
