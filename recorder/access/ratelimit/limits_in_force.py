"""What `GET /v1/limits` tells: the tables that the limits themselves are read from. Contract §7."""

from collections.abc import Iterable

from recorder import limits
from recorder.access.rate_tiers import SURFACES, Rate, Surface, Tier
from recorder.models.limits import (
    Address,
    BatchLimits,
    ByteLimits,
    Limits,
    ListLimits,
    PairOfRates,
    RateLimit,
    SessionLimits,
    StreamLimits,
    SurfaceLimits,
    WholeReadLimits,
    WorkLimits,
)
from recorder.settings import SessionSize


def limits_in_force(
    tier: Tier, addresses: Iterable[tuple[Surface, str, str]], *, session_size: SessionSize
) -> Limits:
    """The limits of a tier; surfaces without an address are left out.

    Args:
        addresses: surface, method and path of every address that there is.
    """
    of_surface: dict[Surface, list[Address]] = {surface: [] for surface in SURFACES}
    for surface, method, path in addresses:
        of_surface[surface].append(Address(method=method, path=path))
    return Limits(
        tier=tier.name,
        rate_limits=[_surface(tier, surface, found) for surface, found in of_surface.items() if found],
        body_bytes=PairOfRates(
            per_key=_rate(tier.body_bytes.per_key), per_workspace=_rate(tier.body_bytes.per_workspace)
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
        batch=BatchLimits(
            events=limits.EVENTS_PER_BATCH,
            frames=limits.FRAMES_PER_BATCH,
            batch_stop_ids=limits.BATCH_STOP_IDS,
        ),
        session=SessionLimits(**session_size._asdict()),
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


def _surface(tier: Tier, surface: Surface, addresses: list[Address]) -> SurfaceLimits:
    rates = tier.rates[surface]
    return SurfaceLimits(
        surface=surface,
        method=addresses[0].method,
        path=addresses[0].path,
        addresses=addresses,
        per_key=_rate(rates.per_key),
        per_workspace=_rate(rates.per_workspace),
    )


def _rate(rate: Rate) -> RateLimit:
    return RateLimit(limit=rate.limit, window_s=rate.window_s, burst=rate.burst)
