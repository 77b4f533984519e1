"""docs/spec-choices.md: every line is whole."""

import re

from recorder.webhooks.catalogue import EVENT_TYPES
from tests.support.project_texts import PAGES, table

CHOICES = PAGES["docs/spec-choices.md"]


def test_every_choice_says_what_was_open_what_we_chose_and_why() -> None:
    sections = re.findall(r"^## (.*)$", CHOICES, re.MULTILINE)
    rows = [row for section in sections for row in table(CHOICES, f"## {section}\n")]
    assert len(sections) >= 7
    assert len(rows) > 60
    assert [row for row in rows if len(row) != 3 or not all(row)] == []
    assert len({row[0] for row in rows}) == len(rows)


def test_every_event_of_the_catalogue_is_sent() -> None:
    assert [type for type, kind in EVENT_TYPES.items() if not kind.is_emitted] == []
