"""Baseline terms: the sessions with which later ones are compared. Spec §6.1, docs/drift.md."""

from dataclasses import dataclass

from recorder.memory.drift.thresholds import DriftRules


@dataclass(frozen=True, slots=True)
class Inherited:
    """A subject that keeps the baseline of the term before, with the positions of that."""

    subject: int
    start: int
    end: int
    #: Sessions count from this position on.
    watched_from: int


@dataclass(frozen=True, slots=True)
class Term:
    """A baseline: the sessions from position `start` to before `end`, and what was settled with it."""

    start: int
    end: int
    #: How many sessions it had when it was chosen; deletions since then do not move the end of the term.
    sessions: int
    #: What grows is compared with the sessions from `start` to before this position.
    known: int
    inherited: tuple[Inherited, ...] = ()

    def over_at(self, rules: DriftRules) -> int:
        """Return the position of the first session that the next baseline judges."""
        return self.end + rules.term * self.sessions


def first_baseline_term(rules: DriftRules) -> Term:
    """Return the term that a workflow begins with, once it has so many sessions."""
    sessions = min(rules.least_baseline, rules.baseline)
    return Term(0, sessions, sessions, known=sessions)


def next_baseline_term(term: Term, rules: DriftRules, inherited: tuple[Inherited, ...] = ()) -> Term:
    """Return the term that follows.

    Nodes first seen within a window before its beginning are still new: no alarm could name them yet. Of a
    small baseline, as a backtest may have, this is the second half: growth needs sessions to compare with.
    """
    end = term.over_at(rules)
    start = max(0, end - rules.baseline)
    known = end - min(rules.window, (end - start) // 2)
    return Term(start, end, end - start, known, inherited)


def latest_baseline_term(sessions: int, rules: DriftRules) -> Term:
    """Return the term that the last of so many sessions belongs to."""
    term = first_baseline_term(rules)
    while term.over_at(rules) <= sessions:
        term = next_baseline_term(term, rules)
    return term
