"""docs/spec-choices.md: every line is whole, and the service answers what it says of later releases."""

import re
from typing import Any

import pytest
from typer.main import get_command

from recorder.cli import app as command_line
from recorder.webhooks.catalogue import EVENT_TYPES
from tests.support.factories import Caller
from tests.support.project_texts import PAGES, ROOT, calls, table, text_of

CHOICES = PAGES["docs/spec-choices.md"]
#: Subject, absent names, present behaviour of what later releases build.
LATER = table(CHOICES, "each address, command and parameter of the list is absent.")
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
    documented = {(row[0], row[1].strip("`")) for row in rows}
    built = {
        (next((text_of(k.value) for k in call.keywords if k.arg == "where"), "body"), text_of(call.args[0]))
        for call in calls("NotSupportedYet")
    }
    assert documented == built == set(REFUSED)


@pytest.mark.parametrize("part", REFUSED, ids=lambda part: part[1])
def test_a_part_of_a_later_release_is_refused_by_name(caller: Caller, part: tuple[str, str]) -> None:
    answer = caller.request(**REFUSED[part])
    (item,) = answer.json()["errors"]
    assert answer.status_code == 422
    assert (item["in"], item["pointer"], item["code"]) == (*part, "not_supported_yet")


def test_the_readme_names_what_the_list_of_later_releases_names() -> None:
    sentence = (ROOT / "README.md").read_text().partition("<!-- not yet")[2].partition("-->\n")[2]
    sentence = " ".join(sentence.partition("<!-- end -->")[0].split())
    assert sentence == f"It does not carry yet: {', '.join(row[0] for row in LATER)}."


@pytest.mark.parametrize("row", LATER, ids=lambda row: row[0])
def test_what_the_list_of_later_releases_names_is_absent(caller: Caller, row: list[str]) -> None:
    operations = caller.service.app.openapi()["paths"]
    commands = get_command(command_line).commands  # type: ignore[attr-defined]
    names = re.findall(r"`([^`]+)`", row[1])
    assert names
    for name in names:
        first, _, rest = name.partition(" ")
        path, _, parameter = rest.partition("?")
        if first == "recorder":
            assert rest not in commands, name
        elif parameter:
            assert ("query", parameter) in REFUSED, name
        else:
            assert path not in operations, name
            assert caller.request(first, path).status_code == 404, name


def test_the_list_of_later_releases_names_all_events_that_are_not_sent_yet() -> None:
    waiting = {type.partition(".")[0] for type, kind in EVENT_TYPES.items() if not kind.is_emitted}
    assert waiting == {"replay", "recovery"}
    assert {"replays", "recoveries"} <= {row[0] for row in LATER}
