"""How often streams are looked after; what a deployment runs with are the defaults. Contract §3."""

from dataclasses import dataclass

from recorder import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds between what a hub does."""

    #: A silent stream carries a comment after this.
    keep_alive_s: float = limits.STREAM_KEEP_ALIVE_S
    #: A reader that does not take what is written at once (64 KiB) within this is cut off.
    slow_s: float = 10.0
    #: What nobody woke it for is found after this.
    poll_s: float = 1.0
    #: A key that was revoked ends its streams after this and a poll.
    standing_s: float = 2.0
