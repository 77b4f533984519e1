"""Every row of spec §2 to §9 is proven, or waits for a named part: `specification.md` is the list."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.spec.proofs import access, administration, events, exports, limits, records, releases, sessions
from tests.support.factories import Caller
from tests.support.specification import ROWS, has_test
from tests.support.specification_checks import Check

CHECKS: dict[str, Check] = {}
for _module in (records, sessions, exports, administration, access, events, limits, releases):
    assert not CHECKS.keys() & _module.ROWS.keys(), "two checks of one row"
    CHECKS |= _module.ROWS

#: How many rows the specification has in each section: fields, states, parameters, codes, limits, constants.
SECTIONS = {
    "2.1": 13, "2.2": 2, "2.3": 5, "2.4": 6, "2.5": 10, "2.6": 6, "2.7": 4, "2.8": 2, "2.9": 6, "2.10": 2,
    "3.1": 10, "3.2": 5, "3.3": 2,
    "4": 1, "4.1": 33, "4.2": 13, "4.3": 34, "4.4": 7, "4.5": 6, "4.6": 1, "5": 21,
    "6.1": 22, "6.2": 5, "6.3": 8, "6.4": 3, "6.5": 1, "7": 7, "8.1": 17, "8.2": 5, "8.3": 17, "9": 21,
}  # fmt: skip


def named(proof: Callable[[str], bool]) -> list[object]:
    """Return the rows with such a proof, as cases named by row."""
    return [pytest.param(row, id=row.key) for row in ROWS if proof(row.proof)]


@pytest.mark.parametrize("row", named(lambda proof: proof == "check"))
def test_row(caller: Caller, row: object) -> None:
    CHECKS[row.key](caller)  # type: ignore[attr-defined]


@pytest.mark.parametrize("row", named(lambda proof: "::" in proof))
def test_row_is_proven_by_a_test_that_is_there(row: object) -> None:
    assert has_test(row.proof), row.proof  # type: ignore[attr-defined]


def test_no_row_is_missing_and_none_comes_twice() -> None:
    assert {key: count for key, count in Counter(row.key for row in ROWS).items() if count > 1} == {}
    assert dict(Counter(row.section for row in ROWS)) == SECTIONS


def test_every_check_is_that_of_a_row() -> None:
    assert set(CHECKS) == {row.key for row in ROWS if row.proof == "check"}


def test_every_proof_is_of_a_known_kind() -> None:
    odd = [row.key for row in ROWS if row.proof != "check" and "::" not in row.proof and row.part is None]
    assert odd == []


def test_no_row_waits_for_a_later_part() -> None:
    assert [row for row in ROWS if row.part is not None] == []
