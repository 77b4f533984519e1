"""Policy of a replay: thresholds, limits and what to do at a divergence. Spec §4.6."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

OnDivergence = Literal["stop", "skip", "ask"]
Heal = Literal["off", "suggest"]
Speed = Literal["fast", "recorded"]
#: Time for the decision on a step of a guided replay, and the message of one that got none.
DECISION_TIME = timedelta(minutes=15)
NO_DECISION = f"No decision came within {DECISION_TIME.seconds // 60} minutes."


@dataclass(frozen=True)
class ReplayPolicy:
    """The policy of one replay; the members without effect in a dry replay are those of the live sandbox."""

    on_divergence: OnDivergence = "stop"
    #: With `suggest`, divergences carry the elements that resemble the one acted on.
    heal: Heal = "suggest"
    #: States this similar, or more, match.
    ok: float = 0.75
    #: States less similar than this diverge.
    diverged: float = 0.45
    #: Least share of sessions that take an edge of the graph.
    min_support: float = 0.01
    step_timeout_ms: int = 5_000
    max_ms: int = 600_000
    repeat_consequential: bool = False
    base_url_map: Mapping[str, str] = field(default_factory=dict)
    allow_hosts: tuple[str, ...] = ()
    allow_methods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    storage_state_ref: str | None = None
    viewport: tuple[int, int] = (1280, 800)
    speed: Speed = "fast"
