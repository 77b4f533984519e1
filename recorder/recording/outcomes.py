"""Outcome rules and outcome marks of sessions; the last mark decides. Spec §2.1, contract §2."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from recorder.models.wire import Outcome


@dataclass(frozen=True)
class OutcomeRules:
    """Names of tags and types of events that mark an outcome."""

    error_tags: frozenset[str] = frozenset({"error", "failed", "failure"})
    success_tags: frozenset[str] = frozenset({"success", "completed", "done"})
    error_events: frozenset[str] = frozenset({"error"})
    success_events: frozenset[str] = frozenset({"success"})

    @classmethod
    def of(cls, overrides: dict[str, Any] | None) -> "OutcomeRules":
        """Return the defaults, with what a workflow sets otherwise."""
        return cls(**{name: frozenset(names) for name, names in (overrides or {}).items()})

    def of_tag(self, name: str) -> Outcome | None:
        """Return the outcome that a tag name marks; None if it marks none."""
        return _classify_outcome_name(name, error=self.error_tags, success=self.success_tags)

    def of_event(self, type: str) -> Outcome | None:
        """Return the outcome that an event type marks; None if it marks none."""
        return _classify_outcome_name(type, error=self.error_events, success=self.success_events)

    @property
    def tag_names(self) -> frozenset[str]:
        """All tag names that mark an outcome."""
        return self.error_tags | self.success_tags

    @property
    def event_types(self) -> frozenset[str]:
        """All event types that mark an outcome."""
        return self.error_events | self.success_events


@dataclass(frozen=True, order=True)
class OutcomeMark:
    """A tag or event that says how a session went; ordered by `(t_ms, id)`."""

    t_ms: int
    id: str
    outcome: Outcome
    source: Literal["tag", "event"]
    name: str

    def as_json(self) -> dict[str, Any]:
        """Return the `error` member of `session.error`, and the form in which a mark is kept."""
        return {"source": self.source, "name": self.name, "id": self.id, "t_ms": self.t_ms}


def last_outcome_mark(marks: Iterable[OutcomeMark]) -> OutcomeMark | None:
    """Return the mark that decides: the last in `(t_ms, id)` order."""
    return max(marks, default=None, key=lambda mark: (mark.t_ms, mark.id))


def outcome_of_mark(mark: OutcomeMark | None) -> Outcome:
    """Return the outcome that the deciding mark gives; without one the session was abandoned."""
    return "abandoned" if mark is None else mark.outcome


def _classify_outcome_name(name: str, *, error: frozenset[str], success: frozenset[str]) -> Outcome | None:
    if name in error:
        return "error"
    return "success" if name in success else None
