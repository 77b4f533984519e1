"""Ids: form, order, ranges. Contract §1 (ids)."""

import itertools
import threading
from datetime import UTC, datetime, timedelta

import pytest

from recorder import clock, ids


def test_an_id_is_a_prefix_and_26_letters() -> None:
    made = ids.new_id("ses")
    assert ids.is_id(made, "ses") and len(made) == 30
    assert not ids.is_id(made, "evt")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ses_",
        "ses_1",
        "SES_01k00000000000000000000000",
        "ses_01K00000000000000000000000",
        "ses_01k00000000000000000000000\n",
        "ses_01k0000000000000000000000u",
        "ses_81k00000000000000000000000",
        "ses_01k0000000000000000000000٣",
        "evt_01k00000000000000000000000",
        "ses_01k000000000000000000000000",
    ],
)
def test_other_text_is_no_id(text: str) -> None:
    assert not ids.is_id(text, "ses")


@pytest.mark.parametrize("text", ["evt_1", "evt_" + "aZ9" * 13, "evt_01k00000000000000000000000"])
def test_clients_may_name_an_event(text: str) -> None:
    assert ids.is_client_id(text, "evt") and not ids.is_client_id(text, "frm")


@pytest.mark.parametrize(
    "text", ["evt_", "evt", "evt_a b", "evt_a\n", "evt_a_b", "evt_é", "evt_" + "a" * 41, "xevt_1"]
)
def test_clients_may_not_name_an_event(text: str) -> None:
    assert not ids.is_client_id(text, "evt")


def test_ids_rise_in_every_thread_and_are_unique() -> None:
    made: list[list[str]] = [[] for _ in range(4)]

    def make(own_ids: list[str]) -> None:
        own_ids.extend(ids.new_id("evt") for _ in range(2_000))

    threads = [threading.Thread(target=make, args=(made_id,)) for made_id in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(made_id == sorted(made_id) for made_id in made)
    assert len({item for made_id in made for item in made_id}) == 8_000


def test_a_range_belongs_to_whom_it_was_given() -> None:
    ranges = [(first := ids.reserve_ulid_values(50), first + 49) for _ in range(500)]
    assert all(last < next_first for (_, last), (next_first, _) in itertools.pairwise(ranges))


def test_ids_of_a_range_follow_each_other() -> None:
    first = f"frm_{ids.encode_ulid(ids.reserve_ulid_values(1_100))}"
    made = ids.id_range(first, 1_100)
    assert made[0] == first and made == sorted(set(made)) and len(made) == 1_100
    assert all(ids.is_id(made_id, "frm") for made_id in made)


def test_encoding_and_decoding_are_each_others_inverse() -> None:
    for value in (0, 1, 31, 32, 2**80, 2**127, 2**128 - 1):
        assert ids.decode_ulid(ids.encode_ulid(value)) == value


def test_a_timed_id_sorts_with_its_time() -> None:
    made, moment = ids.new_timed_id("ses")
    assert abs(clock.now() - moment) < timedelta(seconds=5)
    later = moment + timedelta(milliseconds=1)
    assert ids.first_id_at("ses", moment) <= made < ids.first_id_at("ses", later)


@pytest.mark.parametrize("year", [1, 1969, 1970, 9999])
def test_every_moment_has_a_first_id(year: int) -> None:
    assert ids.is_id(ids.first_id_at("ses", datetime(year, 12, 31, 23, 59, tzinfo=UTC)), "ses")


def test_a_counter_gives_ids_that_rise_and_never_repeat() -> None:
    counter = ids.IdCounter("req")
    made = [counter.next() for _ in range(5_000)]
    assert all(ids.is_id(made_id, "req") for made_id in made)
    assert made == sorted(set(made))
    first, last = (ids.decode_ulid(item.removeprefix("req_")) >> 80 for item in (made[0], made[-1]))
    assert 0 <= last - first < 5_000 and abs(clock.now_ms() - last) < 5_000


def test_a_counter_goes_on_when_its_letters_or_the_clock_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = ids.IdCounter("req")
    for _ in range(0xFFFFF):
        before = counter.next()
    monkeypatch.setattr("time.time_ns", lambda: 0)
    made = [counter.next() for _ in range(3)]
    assert [before, *made] == sorted({before, *made})


def test_two_counters_share_no_ids() -> None:
    first, other = ids.IdCounter("req"), ids.IdCounter("req")
    assert {first.next() for _ in range(100)}.isdisjoint({other.next() for _ in range(100)})
