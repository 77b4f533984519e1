"""Figures of the picture in words."""


def sessions_text(count: int) -> str:
    """A number of sessions."""
    return "1 session" if count == 1 else f"{count:,} sessions"


def left_text(count: int) -> str:
    """How sessions that ended without success are told."""
    return f"{count:,} left"


def start_text(count: int) -> str:
    """How sessions that began elsewhere than most are told."""
    return f"{count:,} start"


def percent_text(share: float) -> str:
    """A share as a whole percentage; what is more than nothing never reads 0%."""
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def duration_text(ms: int) -> str:
    """A time of `ms` milliseconds in the unit that suits it."""
    if ms < 1000:
        return f"{ms} ms"
    return f"{ms / 1000:.1f} s" if ms < 120_000 else f"{ms / 60_000:.1f} min"
