"""Looks at histories of which it is known what changed: both rules, term after term. Spec §6.1."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder.memory.drift.alarm_rules import NodeNew, PathGone, watch_paths
from recorder.memory.drift.baseline import Term, first_term, latest_term, next_term
from recorder.memory.drift.detector import Alarm, Look, Standing, looks
from recorder.memory.drift.history import History
from recorder.memory.drift.thresholds import Rules
from tests.support.drift_histories import at_days, make_history, number_of

RULES = Rules()
#: Two paths in turn for a full baseline: behind it 16 misses of one are an alarm.
BASELINE = "ab" * 250
TERM = Term(0, 500, 500, known=500)


def judge(history: History, standing: Standing | None = None) -> list[Look]:
    """All looks behind a full baseline."""
    return list(looks(history, standing or Standing(term=TERM), RULES))


def alarms_of(history: History, standing: Standing | None = None) -> list[Alarm]:
    """Their alarms."""
    return [alarm for look in judge(history, standing) for alarm in look.alarms]


def told(alarms: list[Alarm]) -> list[tuple[str, int]]:
    """Letter and place of each alarm: small for a path, upper case for a node."""
    return [
        (chr(one.watched.path), one.place)
        if isinstance(one, PathGone)
        else (chr(one.node).upper(), one.place)
        for one in alarms
    ]


def needed_for(history: History, letter: str) -> int:
    """After how many misses a path is gone."""
    [found] = [one for one in watch_paths(history, TERM, RULES) if one.path == number_of(letter)]
    return found.needed


def test_a_path_is_gone_with_the_last_miss_that_is_needed() -> None:
    history = make_history(BASELINE + "a" * 100)
    needed = needed_for(history, "b")
    # K = 2, p_L = .4416 (250 of 500 at .005): ln(8,833) / .5827 = 15.6.
    assert needed == 16
    [alarm] = alarms_of(history)
    assert isinstance(alarm, PathGone)
    assert (alarm.place, len(alarm.misses), alarm.watched.frequency) == (500 + needed - 1, needed, 0.5)
    assert alarm.last_seen_ms == history.started_ms[499]


def test_the_same_is_not_told_again_until_the_path_has_come_back() -> None:
    letters = BASELINE + "a" * 100 + "bb" + "a" * 100 + "b" + "a" * 100
    # The third sighting makes it watched again, and the misses behind it another alarm.
    assert told(alarms_of(make_history(letters))) == [("b", 515), ("b", 703 + 15)]


def test_a_path_that_all_take_is_not_gone_with_a_handful_of_misses() -> None:
    # By the rule two misses would do: p_L = .9908, ln(9,908) / 4.69 = 1.96.
    history = make_history("a" * 500 + "b" * 9 + "a" * 20 + "b" * 10)
    assert told(alarms_of(history)) == [("B", 504), ("a", 538)]


def test_rare_paths_are_not_watched() -> None:
    history = make_history(("a" * 49 + "c") * 10 + "a" * 1_500)
    assert [chr(one.path) for one in watch_paths(history, TERM, RULES)] == ["a"]
    assert alarms_of(history) == []


def test_one_actor_in_one_day_is_no_drift_and_the_next_actor_makes_it_one() -> None:
    actors = [0, 1] * 250 + [7] * 60 + [8]
    started = at_days(*[0] * 561)
    history = make_history(BASELINE + "a" * 61, actors=actors, started_ms=started)
    [alarm] = alarms_of(history)
    assert (alarm.place, isinstance(alarm, PathGone) and len(alarm.misses)) == (560, 61)


def test_two_days_of_one_actor_are_enough() -> None:
    history = make_history(BASELINE + "a" * 40, actors=[7] * 540, started_ms=at_days(*[0] * 520, *[1] * 20))
    assert told(alarms_of(history)) == [("b", 520)]


def test_recordings_of_the_past_are_neither_misses_nor_sightings() -> None:
    past = at_days(*(-400 - place % 3 for place in range(100)))
    began = [place * 3_600_000 for place in range(500)]
    assert alarms_of(make_history(BASELINE + "a" * 100, started_ms=began + past)) == []
    # Nor do they bring a path back that is missing now.
    now = [began[-1] + place * 3_600_000 for place in range(1, 17)]
    letters = BASELINE + "a" * 15 + "b" * 50 + "a"
    history = make_history(letters, started_ms=began + now[:15] + past[:50] + now[15:])
    assert told(alarms_of(history)) == [("b", 565)]


def test_a_new_node_is_told_of_once_it_comes_too_often_to_be_rare() -> None:
    letters = BASELINE + "abababababababababan" * 30
    alarms = [one for one in alarms_of(make_history(letters)) if isinstance(one, NodeNew)]
    [alarm] = alarms
    # N = 500, no node seen but once: five sightings of a hundred are needed.
    assert (chr(alarm.node), alarm.needed, alarm.place, len(alarm.sightings)) == ("n", 5, 599, 5)
    assert (alarm.baseline_start, alarm.baseline, alarm.window_start) == (0, 500, 500)


def test_nodes_that_are_merely_rare_are_not_told_of() -> None:
    letters = BASELINE + "".join(chr(99 + place) + "ab" * 30 for place in range(20))
    assert [one for one in alarms_of(make_history(letters)) if isinstance(one, NodeNew)] == []


def test_a_new_node_of_one_actor_in_one_day_waits_for_another() -> None:
    letters, actors = BASELINE + "n" * 12, [0, 1] * 250 + [5] * 11 + [6]
    history = make_history(letters, actors=actors, started_ms=at_days(*[0] * 512))
    assert ("N", 511) in told(alarms_of(history))


def test_too_few_sessions_are_no_baseline() -> None:
    assert list(looks(make_history("ab" * 49), Standing(), RULES)) == []
    assert len(list(looks(make_history("ab" * 50), Standing(), RULES))) == 1


def test_terms_follow_each_other() -> None:
    terms = [first_term(RULES)]
    for _ in range(3):
        terms.append(next_term(terms[-1], RULES))
    assert [(one.start, one.end, one.over_at(RULES)) for one in terms] == [
        (0, 100, 500),
        (0, 500, 2_500),
        (2_000, 2_500, 4_500),
        (4_000, 4_500, 6_500),
    ]
    assert latest_term(4_499, RULES) == terms[2] and latest_term(4_500, RULES) == terms[3]


def test_a_first_look_at_a_long_history_leaves_its_past_alone() -> None:
    history = make_history("ab" * 500 + "ac" * 2_000 + "ad" * 500)
    recent, whole = (
        told(
            [
                alarm
                for look in looks(history, Standing(), RULES, from_the_start=is_whole)
                for alarm in look.alarms
            ]
        )
        for is_whole in (False, True)
    )
    assert {kind for kind, _ in whole} == {"b", "C", "c", "D"}
    # By one term: 2,000 sessions and what that term had before them.
    assert {kind for kind, _ in recent} == {"c", "D"} and set(recent) < set(whole)


def test_a_first_look_finds_what_happened_in_the_term_behind_the_first_full_baseline() -> None:
    history = make_history(BASELINE + "ab" * 250 + "a" * 1_500)
    found = [alarm for look in looks(history, Standing(), RULES) for alarm in look.alarms]
    assert (len(history), told(found)) == (2_500, [("b", 1_015)])


def test_paths_that_became_common_later_are_watched_by_later_terms() -> None:
    history = make_history("ab" * 500 + "ac" * 900 + "ad" * 100)
    found = [
        alarm for look in looks(history, Standing(), RULES, from_the_start=True) for alarm in look.alarms
    ]
    assert "c" in {letter for letter, _ in told(found)}


def test_a_run_of_misses_goes_on_from_one_term_to_the_next() -> None:
    # `b` stops ten sessions before the term ends: it is told of where it would have been without that end.
    history = make_history("ab" * 1_245 + "a" * 60)
    looked = list(looks(history, Standing(term=TERM), RULES))
    assert [look.standing.looked for look in looked] == [2_500, 2_550]
    [alarm] = [alarm for look in looked for alarm in look.alarms]
    assert 2_500 <= alarm.place <= 2_507


def test_deleting_most_of_a_baseline_begins_a_new_one() -> None:
    history = make_history("ab" * 300)
    kept = np.arange(450, 600)
    columns = ("seal_seq", "path", "variant", "started_ms", "actor")
    left = replace(history, **{name: getattr(history, name)[kept] for name in columns})
    standing = Standing(looked=140, term=Term(0, 50, 500, known=50))
    [look] = looks(left, standing, RULES)
    assert look.standing.term is not None and look.standing.term.end == 100


@st.composite
def _stories(draw: st.DrawFn) -> tuple[str, list[int]]:
    """Sessions whose mix changes now and then, and where looks end."""
    parts = draw(
        st.lists(
            st.tuples(st.text("abcd", min_size=1, max_size=6), st.integers(1, 120)), min_size=3, max_size=9
        )
    )
    letters = "".join((mix * count)[: count * 3] for mix, count in parts)[:1_500]
    cuts = draw(st.lists(st.integers(0, len(letters)), max_size=6))
    return letters, sorted({*cuts, len(letters)})


@settings(max_examples=40, deadline=None)
@given(_stories())
def test_however_sessions_are_cut_into_looks_the_alarms_are_the_same(story: tuple[str, list[int]]) -> None:
    letters, cuts = story
    whole = make_history(letters)
    at_once = [
        alarm for look in looks(whole, Standing(), RULES, from_the_start=True) for alarm in look.alarms
    ]
    standing, found = Standing(), []
    for cut in cuts:
        for look in looks(make_history(letters[:cut]), standing, RULES, from_the_start=True):
            found += look.alarms
            standing = look.standing
    assert told(found) == told(at_once)
    places = [alarm.place for alarm in at_once]
    assert places == sorted(places)


@settings(max_examples=40, deadline=None)
@given(_stories())
def test_between_two_alarms_of_a_path_it_was_seen_three_times(story: tuple[str, list[int]]) -> None:
    letters = story[0]
    found = [
        alarm
        for look in looks(make_history(letters), Standing(), RULES, from_the_start=True)
        for alarm in look.alarms
    ]
    nodes = [one.node for one in found if isinstance(one, NodeNew)]
    assert len(nodes) == len(set(nodes))
    for letter in "abcd":
        places = [one.place for one in found if isinstance(one, PathGone) and chr(one.watched.path) == letter]
        assert all(letters[first:second].count(letter) >= 3 for first, second in pairwise(places))
        assert all(letters[place] != letter for place in places)
