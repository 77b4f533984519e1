"""docs/spec-choices.md: every line is whole, and the service answers what it says of later releases."""

import re

import pytest
from typer.main import get_command

from recorder.cli import app as command_line
from recorder.webhooks.catalogue import EVENT_TYPES
from tests.support.factories import Caller
from tests.support.project_texts import PAGES, ROOT, table

CHOICES = PAGES["docs/spec-choices.md"]
#: Subject, absent names, present behaviour of what later releases build.
LATER = table(CHOICES, "each address, command and member of the list is absent.")


def test_every_choice_says_what_was_open_what_we_chose_and_why() -> None:
    made = CHOICES.partition("## What later releases build")[0]
    sections = re.findall(r"^## (.*)$", made, re.MULTILINE)
    rows = [row for section in sections for row in table(made, f"## {section}\n")]
    assert len(sections) >= 7
    assert len(rows) > 60
    assert [row for row in rows if len(row) != 3 or not all(row)] == []
    assert len({row[0] for row in rows}) == len(rows)


def test_the_readme_names_what_the_list_of_later_releases_names() -> None:
    sentence = (ROOT / "README.md").read_text().partition("<!-- not yet")[2].partition("-->\n")[2]
    sentence = " ".join(sentence.partition("<!-- end -->")[0].split())
    assert sentence == f"It does not carry yet: {', '.join(row[0] for row in LATER)}."


@pytest.mark.parametrize("row", LATER, ids=lambda row: row[0])
def test_what_the_list_of_later_releases_names_is_absent(caller: Caller, row: list[str]) -> None:
    document = caller.service.app.openapi()
    operations = document["paths"]
    schemas = document["components"]["schemas"].values()
    members = {name for schema in schemas for name in schema.get("properties", ())}
    assert {"tag", "repeat_consequential"} <= members
    commands = get_command(command_line).commands  # type: ignore[attr-defined]
    names = re.findall(r"`([^`]+)`", row[1])
    assert names
    for name in names:
        first, _, rest = name.partition(" ")
        if first == "recorder":
            assert rest not in commands, name
        elif not rest:
            assert name.rpartition(".")[2] not in members, name
        else:
            assert rest not in operations, name
            assert caller.request(first, rest).status_code == 404, name


def test_the_list_of_later_releases_names_all_events_that_are_not_sent_yet() -> None:
    waiting = {type.partition(".")[0] for type, kind in EVENT_TYPES.items() if not kind.is_emitted}
    assert waiting == set()
