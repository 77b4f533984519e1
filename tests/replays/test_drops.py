"""Drop targets of drags in dry replays, and what clients may send in their place."""

from typing import Any

import pytest

from recorder.replays.drop_targets import read_drop_target


@pytest.mark.parametrize(
    ("data", "target"),
    [
        (None, None),
        ({"drop": None}, None),
        ({"drop": ["#done"]}, None),
        ({"drop": {}}, None),
        ({"drop": {"name": 5, "selectors": "#done"}}, None),
        ({"drop": {"name": "Done", "rect": [1]}}, {"name": "Done"}),
        (
            {"drop": {"selectors": ["#done", 5, ["#host", "#done"], [5]], "attrs": {"id": "done", "n": 1}}},
            {"selectors": ["#done", ["#host", "#done"]], "attrs": {"id": "done"}},
        ),
    ],
)  # fmt: skip
def test_members_of_other_types_are_left_out(data: Any, target: Any) -> None:
    assert read_drop_target({"type": "drag", "data": data}) == target
