"""Texts that nodes have proofs enough of are passed over, and nothing else is. Spec §2.6."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from recorder.memory.graph.node_labels import LabelText, NodeLabels, TextKind
from recorder.memory.steps.session_steps import Step

STEP = Step(0, 7, "", "click", "", "Click button", (), 0, 0, None, "evt_1", 1)
#: Templates of one node, and spellings of a template.
TEXTS = ["Save", "Tab 1", "Tab 2", "Tab 3", "Tab 4", "Tab 5", *"abcdefghij"]


class _Forgetful(dict[tuple[int, TextKind, str], int]):
    """Never holds a settled text."""

    def __setitem__(self, key: tuple[int, TextKind, str], value: int) -> None:
        pass


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4)),
        min_size=4,
        max_size=40,
    )
)
def test_the_same_texts_are_stored_as_without_the_settled_ones(
    sessions: list[tuple[int, list[str]]],
) -> None:
    labels, forgetful = NodeLabels(), NodeLabels(_Forgetful())

    def store(held: NodeLabels) -> list[LabelText]:
        return [
            given
            for number, (actor, texts) in enumerate(sessions)
            for given in held.add_session(
                f"ses_{number}", [replace(STEP, names=(text,)) for text in texts], {7: 0}, actor
            )
        ]

    assert store(labels) == store(forgetful)


def test_a_text_is_stored_for_three_sessions_of_each_of_two_actors_at_most() -> None:
    labels = NodeLabels()
    step = replace(STEP, names=("Save",))
    stored = [
        [*labels.add_session(f"ses_{number}", [step], {7: 0}, actor)]
        for number, actor in enumerate([1, 1, 1, 1, 2, 3, 1, 2])
    ]
    assert [len(texts) for texts in stored] == [1, 1, 1, 0, 1, 0, 0, 0]


def test_other_digits_of_a_text_are_stored_after_it_until_there_are_four() -> None:
    labels = NodeLabels()
    for number in range(3):
        assert [*labels.add_session(f"ses_{number}", [replace(STEP, names=("Tab 1",))], {7: 0}, number)]
    stored = [
        [*labels.add_session(f"ses_1{digit}", [replace(STEP, names=(f"Tab {digit}",))], {7: 0}, 1)]
        for digit in range(1, 7)
    ]
    assert [len(texts) for texts in stored] == [0, 1, 1, 1, 0, 0]
