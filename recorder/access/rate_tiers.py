"""Rate limits of each tier, by surface, and their form in `GET /v1/limits`. Spec §8.1, contract §1, §7."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from recorder import limits
from recorder.models.limits import (
    Address,
    BatchLimits,
    ByteLimits,
    ConnectionLimits,
    Limits,
    ListLimits,
    PairOfRates,
    RateLimit,
    SessionLimits,
    StreamLimits,
    SurfaceLimits,
    WebhookLimits,
    WholeReadLimits,
    WorkLimits,
    WorkspaceLimits,
)
from recorder.setting_parsers import SessionSize

Surface = Literal[
    "create_session", "append_events", "append_frames", "reads", "exports", "live_replays", "other"
]
SURFACES: tuple[Surface, ...] = get_args(Surface)


@dataclass(frozen=True, slots=True)
class Rate:
    """Most requests, or bytes, in a window; refilled continuously."""

    limit: int
    window_s: int = 1

    @property
    def burst(self) -> int:
        """Size of the bucket: twice a rate per second, once a rate per minute (contract §1)."""
        return 2 * self.limit if self.window_s == 1 else self.limit

    @property
    def per_second(self) -> float:
        """Tokens that are refilled each second."""
        return self.limit / self.window_s


@dataclass(frozen=True, slots=True)
class SurfaceRates:
    """The two limits of a surface; both must admit a request."""

    per_key: Rate
    per_workspace: Rate


@dataclass(frozen=True, slots=True)
class Tier:
    """A named table of limits; an operator gives each workspace one."""

    name: str
    rates: dict[Surface, SurfaceRates]
    streams_per_key: int
    streams_per_workspace: int
    #: Bytes of request bodies; a burst admits the largest request there is.
    body_bytes: SurfaceRates
    #: Requests under way at once; streams have limits of their own.
    requests_per_key: int
    requests_per_workspace: int
    #: Per calendar month; None means unlimited.
    captured_minutes: int | None = None
    exported_rows: int | None = None


def _make_rates_per_second(key: int, workspace: int) -> SurfaceRates:
    return SurfaceRates(Rate(key), Rate(workspace))


def _make_rates_per_minute(key: int, workspace: int) -> SurfaceRates:
    return SurfaceRates(Rate(key, 60), Rate(workspace, 60))


def _make_tier(
    name: str, factor: int, *, captured_minutes: int | None = None, exported_rows: int | None = None
) -> Tier:
    """Return a tier whose rates are those of the lowest tier times a factor."""
    rates: dict[Surface, SurfaceRates] = {
        "create_session": _make_rates_per_second(30 * factor, 200 * factor),
        "append_events": _make_rates_per_second(1000 * factor, 5000 * factor),
        "append_frames": _make_rates_per_second(200 * factor, 1000 * factor),
        "reads": _make_rates_per_second(200 * factor, 2000 * factor),
        "exports": _make_rates_per_minute(5 * factor, 30 * factor),
        "live_replays": _make_rates_per_minute(10 * factor, 50 * factor),
        "other": _make_rates_per_second(50 * factor, 500 * factor),
    }
    return Tier(
        name,
        rates,
        streams_per_key=50 * factor,
        streams_per_workspace=500 * factor,
        body_bytes=_make_rates_per_second(50_000_000 * factor, 100_000_000 * factor),
        requests_per_key=32 * factor,
        requests_per_workspace=128 * factor,
        captured_minutes=captured_minutes,
        exported_rows=exported_rows,
    )


#: `default` is the table of spec §8.1; the others scale it. `trial` is the one with quotas, `unlimited` one
#: for deployments with a single user, whose machine is the only limit.
TIERS: dict[str, Tier] = {
    tier.name: tier
    for tier in (
        _make_tier("default", 1),
        _make_tier("trial", 1, captured_minutes=1_000, exported_rows=1_000_000),
        _make_tier("team", 2),
        _make_tier("scale", 10),
        _make_tier("unlimited", 1_000),
    )
}

#: Requests without a valid key, per client address.
STRANGERS = Rate(20)
#: Downloads by signed address, per client address: a data loader reads many ranges.
SIGNED_READS = Rate(200)
#: Redeliveries and test events, per webhook.
WEBHOOK_CALLS = Rate(10, 60)


def describe_tier_limits(
    tier: Tier,
    addresses: Iterable[tuple[Surface, str, str]],
    *,
    session_size: SessionSize,
    connections: ConnectionLimits,
) -> Limits:
    """Return the limits of a tier; surfaces without an address are left out.

    Args:
        tier: the table of limits.
        addresses: surface, method and path of every address.
        session_size: most events and frames of a session.
        connections: most open connections of this process.
    """
    of_surface: dict[Surface, list[Address]] = {surface: [] for surface in SURFACES}
    for surface, method, path in addresses:
        of_surface[surface].append(Address(method=method, path=path))
    return Limits(
        tier=tier.name,
        rate_limits=[
            _describe_surface_limits(tier, surface, listed)
            for surface, listed in of_surface.items()
            if listed
        ],
        body_bytes=PairOfRates(
            per_key=_describe_rate(tier.body_bytes.per_key),
            per_workspace=_describe_rate(tier.body_bytes.per_workspace),
        ),
        concurrent_requests=WorkLimits(
            per_key=tier.requests_per_key, per_workspace=tier.requests_per_workspace
        ),
        concurrent_streams=StreamLimits(
            per_key=tier.streams_per_key, per_workspace=tier.streams_per_workspace
        ),
        whole_session_reads=WholeReadLimits(
            per_key=limits.WHOLE_READS_PER_KEY,
            per_workspace=limits.WHOLE_READS_PER_WORKSPACE,
            per_process=limits.WHOLE_READS_PER_PROCESS,
        ),
        open_connections=connections,
        batch=BatchLimits(
            events=limits.EVENTS_PER_BATCH,
            frames=limits.FRAMES_PER_BATCH,
            batch_stop_ids=limits.BATCH_STOP_IDS,
        ),
        session=SessionLimits(**session_size._asdict(), tags=limits.TAGS_PER_SESSION),
        workspace=WorkspaceLimits(
            workflows=limits.WORKFLOWS_PER_WORKSPACE,
            open_exports=limits.OPEN_EXPORTS,
            open_replays=limits.OPEN_REPLAYS,
            open_erasures=limits.OPEN_ERASURES,
            keys=limits.KEYS_PER_WORKSPACE,
            masking_replacements=limits.MASKING_REPLACEMENTS,
        ),
        webhooks=WebhookLimits(
            per_workspace=limits.WEBHOOKS_PER_WORKSPACE, pending_deliveries=limits.PENDING_DELIVERIES
        ),
        bytes=ByteLimits(
            request=limits.BODY_BYTES,
            events_request=limits.EVENTS_REQUEST_BYTES,
            frames_request=limits.FRAMES_REQUEST_BYTES,
            event=limits.EVENT_BYTES,
            frame=limits.FRAME_BYTES,
            dom=limits.DOM_BYTES,
            frame_members=limits.FRAME_MEMBERS_BYTES,
            metadata=limits.METADATA_BYTES,
            tag_data=limits.TAG_DATA_BYTES,
        ),
        list=ListLimits(default=limits.LIST_DEFAULT, max=limits.LIST_MAX),
    )


def _describe_surface_limits(tier: Tier, surface: Surface, addresses: list[Address]) -> SurfaceLimits:
    rates = tier.rates[surface]
    return SurfaceLimits(
        surface=surface,
        method=addresses[0].method,
        path=addresses[0].path,
        addresses=addresses,
        per_key=_describe_rate(rates.per_key),
        per_workspace=_describe_rate(rates.per_workspace),
    )


def _describe_rate(rate: Rate) -> RateLimit:
    return RateLimit(limit=rate.limit, window_s=rate.window_s, burst=rate.burst)
