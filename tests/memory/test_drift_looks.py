"""Checks of histories with known changes: both rules, term after term. Spec §6.1."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder.memory.drift.baseline_terms import (
    Term,
    first_baseline_term,
    latest_baseline_term,
    next_baseline_term,
)
from recorder.memory.drift.detector import Alarm, DetectorState, TermCheck, detect_alarms
from recorder.memory.drift.drift_subjects import list_drift_subjects
from recorder.memory.drift.falls import Fall
from recorder.memory.drift.growth import Growth
from recorder.memory.drift.history import History
from recorder.memory.drift.thresholds import DriftRules
from recorder.memory.drift.watched_subjects import list_watched_subjects
from recorder.memory.graph.paths import NO_PATH
from tests.support.drift_histories import at_days, make_history, number_of

RULES = DriftRules()
#: Two paths in turn for a full baseline: after it 18 misses of one are an alarm.
BASELINE = "ab" * 250
TERM = Term(0, 500, 500, known=500)


def judge(history: History, state: DetectorState | None = None) -> list[TermCheck]:
    """Return all checks after a full baseline."""
    return list(detect_alarms(history, state or DetectorState(term=TERM), RULES))


def alarms_of(history: History, state: DetectorState | None = None) -> list[Alarm]:
    """Return the alarms of these sessions."""
    return [alarm for check in judge(history, state) for alarm in check.alarms]


def told(alarms: list[Alarm]) -> list[tuple[str, int]]:
    """Return the letter and position of each alarm: lower case for a fall, upper case for growth.

    Each letter is a path of one node, so a change of both is one alarm.
    """
    return [
        (letter_of(alarm) if isinstance(alarm, Fall) else letter_of(alarm).upper(), alarm.position)
        for alarm in alarms
    ]


def letter_of(alarm: Alarm) -> str:
    """Return the letter of a path or node; both have the number of the letter."""
    return chr(make_history("a").subjects.describe(alarm.subject).key[0])


def needed_for(history: History, letter: str) -> int:
    """Return the number of misses after which a path has stopped."""
    subjects = history.subjects
    [watch, *_] = [
        watch
        for watch in list_watched_subjects(history, TERM, RULES)
        if subjects.describe(watch.subject).key == (number_of(letter),)
    ]
    return watch.needed


def test_a_path_is_gone_with_the_last_miss_that_is_needed() -> None:
    history = make_history(BASELINE + "a" * 100)
    needed = needed_for(history, "b")
    # Of a rate known to be ½ it were ln(2 · 160,000 · ½) / ln 2 = 17.3.
    assert needed == 18
    [alarm] = alarms_of(history)
    assert isinstance(alarm, Fall)
    assert (alarm.position, len(alarm.window), alarm.watch.frequency) == (500 + needed - 1, needed, 0.5)
    assert alarm.last_seen_ms == history.started_ms[499]


def test_the_same_is_not_told_again_until_the_path_has_come_back() -> None:
    letters = BASELINE + "a" * 100 + "bb" + "a" * 100 + "b" * 10 + "a" * 100
    # Two sightings are no return, ten in a row are, and the misses after them another alarm.
    assert told(alarms_of(make_history(letters))) == [("b", 517), ("b", 712 + 17)]


def test_a_path_that_all_take_has_not_stopped_with_a_handful_of_misses() -> None:
    [watch] = list_watched_subjects(make_history("a" * 600), TERM, RULES)[:1]
    assert (watch.seen, watch.needed) == (500, 10)


def test_work_that_replaces_other_work_is_one_alarm() -> None:
    # The sessions of `b` are all of what `a` lost.
    assert told(alarms_of(make_history("a" * 500 + "ab" * 100))) == [("B", 509)]


def test_a_rate_that_drops_is_told_once_with_both_rates() -> None:
    letters = BASELINE + "aaab" * 300
    [alarm] = alarms_of(make_history(letters))
    assert isinstance(alarm, Fall) and alarm.kind == "dropped"
    assert (letter_of(alarm), alarm.watch.frequency) == ("b", 0.5)
    assert 0.1 < alarm.after < 0.35 and alarm.position < 500 + 130


def test_a_drop_is_told_again_after_the_rate_has_returned() -> None:
    letters = BASELINE + "aaab" * 80 + "ab" * 250 + "aaab" * 80
    alarms = alarms_of(make_history(letters))
    assert [letter for letter, _ in told(alarms)] == ["b", "b"]
    assert alarms[0].position < 820 and alarms[1].position >= 820 + 500


def test_a_smaller_decline_is_not_told() -> None:
    assert alarms_of(make_history(BASELINE + "aabab" * 300)) == []


def test_what_was_rare_and_grows_is_told_once() -> None:
    letters = ("ab" * 24 + "ac") * 10 + "abababac" * 250
    [alarm] = alarms_of(make_history(letters))
    assert isinstance(alarm, Growth)
    assert (letter_of(alarm), alarm.kind, alarm.baseline_seen) == ("c", "grew", 10)


def test_rare_paths_are_not_watched() -> None:
    history = make_history(("a" * 49 + "c") * 10 + "a" * 1_500)
    watches = list_watched_subjects(history, TERM, RULES)
    assert {history.subjects.describe(watch.subject).key for watch in watches} == {(number_of("a"),)}
    assert alarms_of(history) == []


def test_one_actor_in_one_day_is_no_drift_and_the_next_actor_makes_it_one() -> None:
    actors = [0, 1] * 250 + [7] * 60 + [8]
    started = at_days(*[0] * 561)
    history = make_history(BASELINE + "a" * 61, actors=actors, started_ms=started)
    [alarm] = alarms_of(history)
    assert (alarm.position, isinstance(alarm, Fall) and len(alarm.window)) == (560, 61)


def test_two_days_of_one_actor_are_enough() -> None:
    history = make_history(BASELINE + "a" * 40, actors=[7] * 540, started_ms=at_days(*[0] * 520, *[1] * 20))
    assert told(alarms_of(history)) == [("b", 520)]


def test_recordings_of_the_past_are_neither_misses_nor_sightings() -> None:
    past = at_days(*(-400 - index % 3 for index in range(100)))
    began = [index * 3_600_000 for index in range(500)]
    assert alarms_of(make_history(BASELINE + "a" * 100, started_ms=began + past)) == []
    # Nor do they bring a path back that is missing now.
    now = [began[-1] + index * 3_600_000 for index in range(1, 19)]
    letters = BASELINE + "a" * 17 + "b" * 50 + "a"
    history = make_history(letters, started_ms=began + now[:17] + past[:50] + now[17:])
    assert told(alarms_of(history)) == [("b", 567)]


def test_a_new_node_is_told_of_once_it_comes_too_often_to_be_rare() -> None:
    letters = BASELINE + "abababababababababan" * 30
    alarms = [alarm for alarm in alarms_of(make_history(letters)) if isinstance(alarm, Growth)]
    [alarm] = alarms
    # N = 500, no node seen but once: five sightings of a hundred are needed.
    assert (letter_of(alarm), alarm.needed, alarm.position, len(alarm.sightings)) == ("n", 5, 599, 5)
    assert (alarm.baseline_start, alarm.baseline, alarm.window_start) == (0, 500, 500)


def test_nodes_that_are_merely_rare_are_not_told_of() -> None:
    letters = BASELINE + "".join(chr(99 + index) + "ab" * 30 for index in range(20))
    assert [alarm for alarm in alarms_of(make_history(letters)) if isinstance(alarm, Growth)] == []


def test_a_new_node_of_one_actor_in_one_day_waits_for_another() -> None:
    letters, actors = BASELINE + "n" * 12, [0, 1] * 250 + [5] * 11 + [6]
    history = make_history(letters, actors=actors, started_ms=at_days(*[0] * 512))
    assert ("N", 511) in told(alarms_of(history))


def test_too_few_sessions_are_no_baseline() -> None:
    assert list(detect_alarms(make_history("ab" * 49), DetectorState(), RULES)) == []
    assert len(list(detect_alarms(make_history("ab" * 50), DetectorState(), RULES))) == 1


def test_terms_follow_each_other() -> None:
    terms = [first_baseline_term(RULES)]
    for _ in range(3):
        terms.append(next_baseline_term(terms[-1], RULES))
    assert [(term.start, term.end, term.over_at(RULES)) for term in terms] == [
        (0, 100, 500),
        (0, 500, 2_500),
        (2_000, 2_500, 4_500),
        (4_000, 4_500, 6_500),
    ]
    assert latest_baseline_term(4_499, RULES) == terms[2] and latest_baseline_term(4_500, RULES) == terms[3]


def test_a_first_look_at_a_long_history_leaves_its_past_alone() -> None:
    history = make_history("ab" * 500 + "ac" * 2_000 + "ad" * 500)
    recent, whole = (
        told(
            [
                alarm
                for check in detect_alarms(history, DetectorState(), RULES, from_the_start=is_whole)
                for alarm in check.alarms
            ]
        )
        for is_whole in (False, True)
    )
    assert {kind for kind, _ in whole} == {"b", "C", "c", "D"}
    # By one term: 2,000 sessions and what that term had before them.
    assert {kind for kind, _ in recent} == {"c", "D"} and set(recent) < set(whole)


def test_a_first_look_finds_what_happened_in_the_term_behind_the_first_full_baseline() -> None:
    history = make_history(BASELINE + "ab" * 250 + "a" * 1_500)
    alarms = [alarm for check in detect_alarms(history, DetectorState(), RULES) for alarm in check.alarms]
    assert (len(history), told(alarms)) == (2_500, [("b", 1_017)])


def test_paths_that_became_common_later_are_watched_by_later_terms() -> None:
    history = make_history("ab" * 500 + "ac" * 900 + "ad" * 100)
    alarms = [
        alarm
        for check in detect_alarms(history, DetectorState(), RULES, from_the_start=True)
        for alarm in check.alarms
    ]
    assert "c" in {letter for letter, _ in told(alarms)}


def test_a_run_of_misses_goes_on_from_one_term_to_the_next() -> None:
    # `b` stops ten sessions before the term ends: it is told of where it would have been without that end.
    history = make_history("ab" * 1_245 + "a" * 60)
    judged = list(detect_alarms(history, DetectorState(term=TERM), RULES))
    assert [check.state.judged for check in judged] == [2_500, 2_550]
    [alarm] = [alarm for check in judged for alarm in check.alarms]
    assert 2_500 <= alarm.position <= 2_507


def test_deleting_most_of_a_baseline_begins_a_new_one() -> None:
    history = make_history("ab" * 300)
    kept = np.arange(450, 600)
    columns = ("seal_seq", "variant", "started_ms", "actor")
    left = replace(history, **{name: getattr(history, name)[kept] for name in columns})
    state = DetectorState(judged=140, term=Term(0, 50, 500, known=50))
    [check] = detect_alarms(left, state, RULES)
    assert check.state.term is not None and check.state.term.end == 100


@st.composite
def _stories(draw: st.DrawFn) -> tuple[str, list[int]]:
    """Generate sessions whose mix changes now and then, and the ends of checks."""
    parts = draw(
        st.lists(
            st.tuples(st.text("abcd", min_size=1, max_size=6), st.integers(1, 120)), min_size=3, max_size=9
        )
    )
    letters = "".join((mix * count)[: count * 3] for mix, count in parts)[:1_500]
    cuts = draw(st.lists(st.integers(0, len(letters)), max_size=6))
    return letters, sorted({*cuts, len(letters)})


@settings(max_examples=15, deadline=None)
@given(_stories())
def test_however_sessions_are_cut_into_looks_the_alarms_are_the_same(story: tuple[str, list[int]]) -> None:
    letters, cuts = story
    whole = make_history(letters)
    at_once = [
        alarm
        for check in detect_alarms(whole, DetectorState(), RULES, from_the_start=True)
        for alarm in check.alarms
    ]
    state, alarms = DetectorState(), []
    for cut in cuts:
        for check in detect_alarms(make_history(letters[:cut]), state, RULES, from_the_start=True):
            alarms += check.alarms
            state = check.state
    assert told(alarms) == told(at_once)
    places = [alarm.position for alarm in at_once]
    assert places == sorted(places)


@settings(max_examples=15, deadline=None)
@given(_stories())
def test_between_two_falls_of_a_path_it_was_seen_five_times(story: tuple[str, list[int]]) -> None:
    letters = story[0]
    alarms = [
        alarm
        for check in detect_alarms(make_history(letters), DetectorState(), RULES, from_the_start=True)
        for alarm in check.alarms
    ]
    new = [alarm.subject for alarm in alarms if alarm.kind == "new"]
    assert len(new) == len(set(new))
    for letter in "abcd":
        falls = [alarm for alarm in alarms if isinstance(alarm, Fall) and letter_of(alarm) == letter]
        for first, second in pairwise(falls):
            assert letters[first.position : second.position].count(letter) >= 5
        assert all(letters[fall.position] != letter for fall in falls)


def test_sessions_without_steps_are_of_the_baseline_and_on_no_path() -> None:
    # Every third session of the baseline has no step; afterwards all have one.
    variants = np.array([0, 1, 2] * 200 + [1, 2] * 400, dtype=np.int64)
    nodes = np.array([7, 8], dtype=np.int64)
    subjects = list_drift_subjects(np.array([NO_PATH, 0, 1]), np.array([0, 0, 1, 2]), nodes)
    sessions = np.arange(len(variants), dtype=np.int64)
    history = History(sessions + 1, variants, sessions * 3_600_000, sessions % 2, subjects)
    assert [subjects.describe(number).key for number in range(len(subjects))] == [(0,), (1,), (7,), (8,)]
    assert [watch.frequency for watch in list_watched_subjects(history, TERM, RULES)] == [167 / 500] * 2 + [
        166 / 500
    ] * 2
    assert alarms_of(history) == []
