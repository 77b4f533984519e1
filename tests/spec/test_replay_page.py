"""Tables of docs/replays.md: they list the members and the kinds that the code has."""

import re
from dataclasses import fields
from typing import Any, get_args

import pytest

from recorder.models.replay import ReplayPolicyBody, ReplayStep
from recorder.replays.replay_results import (
    ActionDelivery,
    Divergence,
    DivergenceKind,
    ReplaySummary,
    StepOutcome,
)
from tests.support.project_texts import PAGES, table

_PAGE = PAGES["docs/replays.md"]


def read_names(cell: str) -> list[str]:
    """Return the names in backticks of a cell."""
    return re.findall(r"`(\w+)`", cell)


def read_first_column(text: str, heading: str) -> set[str]:
    """Return the names in the first column of the table below a heading."""
    return {name for row in table(text, heading) for name in read_names(row[0])}


@pytest.mark.parametrize(
    ("heading", "members"),
    [
        ("### Policy\n", ReplayPolicyBody.model_fields),
        ("### Steps\n", ReplayStep.model_fields),
        ("### Summary\n", [field.name for field in fields(ReplaySummary)]),
        ("### Divergence\n", [field.name for field in fields(Divergence)]),
    ],
)
def test_each_table_lists_the_members_of_its_object(heading: str, members: Any) -> None:
    assert read_first_column(_PAGE, heading) == set(members)


def test_the_table_of_divergences_has_every_kind_with_its_sandbox() -> None:
    rows = table(_PAGE, "frame of `result_session_id` that shows the page of a live replay |\n")
    assert {name for row in rows for name in read_names(row[0])} == set(get_args(DivergenceKind))
    assert {row[1] for row in rows} == {"both", "dry", "live"}


def test_outcomes_and_deliveries_of_steps_are_named() -> None:
    rows = {row[0]: set(read_names(row[1])) for row in table(_PAGE, "### Steps\n")}
    assert set(get_args(StepOutcome)) <= rows["`outcome`"]
    assert set(get_args(ActionDelivery)) <= rows["`delivery`"]
