"""docs/spec-choices.md: every line is whole, and the service answers what it says of later releases."""

import re
from typing import Any

import pytest

from tests.support.factories import Caller
from tests.support.project_texts import PAGES, calls, table, text_of

CHOICES = PAGES["docs/spec-choices.md"]
#: One request for each place at which the service says `not_supported_yet`.
REFUSED: dict[tuple[str, str], dict[str, Any]] = {
    ("query", "hard"): {"method": "DELETE", "path": "/v1/sessions/ses_unknown?hard=true"},
}


def test_every_choice_says_what_was_open_what_we_chose_and_why() -> None:
    made = CHOICES.partition("## What later releases build")[0]
    sections = re.findall(r"^## (.*)$", made, re.MULTILINE)
    rows = [row for section in sections for row in table(made, f"## {section}\n")]
    assert len(sections) >= 7
    assert len(rows) > 60
    assert [row for row in rows if len(row) != 3 or not all(row)] == []
    assert len({row[0] for row in rows}) == len(rows)


def test_the_choices_name_every_place_that_is_refused() -> None:
    rows = table(CHOICES, "`not_supported_yet` at this place.")
    told = {(row[0], row[1].strip("`")) for row in rows}
    built = {
        (next((text_of(k.value) for k in call.keywords if k.arg == "where"), "body"), text_of(call.args[0]))
        for call in calls("NotSupportedYet")
    }
    assert told == built == set(REFUSED)


@pytest.mark.parametrize("place", REFUSED, ids=lambda place: place[1])
def test_a_part_of_a_later_release_is_refused_by_name(caller: Caller, place: tuple[str, str]) -> None:
    answer = caller.request(**REFUSED[place])
    (item,) = answer.json()["errors"]
    assert answer.status_code == 422
    assert (item["in"], item["pointer"], item["code"]) == (*place, "not_supported_yet")


def test_the_addresses_of_later_releases_are_not_there_yet(caller: Caller) -> None:
    rows = table(CHOICES, "These addresses answer 404 until then:")
    addresses = [row[0].strip("`").split(" ") for row in rows]
    answers = {
        f"{method} {path}": caller.request(method, re.sub(r"\{\w+\}", "any", path)).status_code
        for method, path in addresses
    }
    assert len(answers) >= 3
    assert {address: status for address, status in answers.items() if status != 404} == {}
