"""Numbers in texts for people: plurals, durations, ages and sizes."""

from recorder.number_formats import format_age, format_bytes, format_count, format_duration, format_seconds


def test_a_count_has_the_singular_or_the_regular_plural() -> None:
    texts = [format_count(1, "entry"), format_count(1_000, "entry"), format_count(2, "day")]
    assert texts == ["1 entry", "1,000 entries", "2 days"]


def test_durations_change_their_unit_where_it_suits() -> None:
    assert [format_duration(ms) for ms in (999, 1_000, 120_000)] == ["999 ms", "1.0 s", "2.0 min"]
    assert [format_seconds(seconds) for seconds in (119.9, 120)] == ["119 s", "2 min"]


def test_an_age_is_in_its_largest_unit_and_never_negative() -> None:
    assert [format_age(s) for s in (-3, 59.9, 60, 7_199, 86_400)] == ["0 s", "59 s", "1 m", "1 h", "1 d"]


def test_a_size_is_in_its_largest_unit() -> None:
    sizes = [format_bytes(count) for count in (1, 999, 1_500, 2_000_000, 3_400_000_000)]
    assert sizes == ["1 byte", "999 bytes", "1.5 kB", "2.0 MB", "3.4 GB"]
