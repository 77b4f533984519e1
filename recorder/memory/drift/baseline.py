"""What sessions are compared with, and for how long: a baseline and its term. Docs: docs/drift.md.

A workflow's first baseline are its first 100 sessions, in force for 400; then the latest 500 take over, for
2,000, and so on. So paths that became common later are watched too, and figures stay those of these days.
"""

from dataclasses import dataclass

from recorder.memory.drift.thresholds import Rules


@dataclass(frozen=True, slots=True)
class Inherited:
    """A path that was watched before the present term, with the places of its baseline."""

    path: int
    start: int
    end: int
    #: Misses count from this place on.
    watched_from: int


@dataclass(frozen=True, slots=True)
class Term:
    """A baseline: the sessions from place `start` to before `end`, and what was settled with it."""

    start: int
    end: int
    #: How many sessions it had when it was chosen; deletions since then do not move the end of the term.
    sessions: int
    #: Nodes that any session before this place went through are not new.
    known: int
    inherited: tuple[Inherited, ...] = ()

    def over_at(self, rules: Rules) -> int:
        """The place of the first session that the next baseline judges."""
        return self.end + rules.term * self.sessions


def first_term(rules: Rules) -> Term:
    """The term that a workflow begins with, once it has so many sessions."""
    sessions = min(rules.least_baseline, rules.baseline)
    return Term(0, sessions, sessions, known=sessions)


def next_term(term: Term, rules: Rules, inherited: tuple[Inherited, ...] = ()) -> Term:
    """The term that follows.

    Nodes that came up within a window before its beginning are still new: they had no time to be told of.
    """
    end = term.over_at(rules)
    start = max(0, end - rules.baseline)
    return Term(start, end, end - start, max(0, end - rules.window), inherited)


def latest_term(sessions: int, rules: Rules) -> Term:
    """The term that the last of so many sessions belongs to."""
    term = first_term(rules)
    while term.over_at(rules) <= sessions:
        term = next_term(term, rules)
    return term
