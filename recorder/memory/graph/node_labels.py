"""Labels of nodes: which texts of recorded pages may name a node, and what each node is called. Spec §2.6.

A text names a node where at least `MIN_SESSIONS` sessions share it, of two actors where the workflow has two.
So many sessions are kept for each text as prove that, and no more.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from recorder.memory.steps.session_steps import Step
from recorder.memory.steps.step_labels import make_label
from recorder.memory.steps.targets import key_of, template_of

#: Sessions that must share a text before it is shown.
MIN_SESSIONS = 3
#: Actors that must share it where the workflow has as many.
MIN_ACTORS = 2
#: A node with more different texts of one kind is an item of a list: none of them is its name.
_MAX_TEXTS = 8
#: More shared texts than this say that the node has no name of its own.
_MAX_SHARED = 2


class TextKind(IntEnum):
    """Part of a label that a text is a candidate for."""

    NAME = 0
    LOCATION = 1
    WORDS = 2


class LabelText(NamedTuple):
    """A text that one session gives to a micro-state: a row of `graph_labels`."""

    micro_key: int
    kind: TextKind
    text: str
    session_id: str
    #: Key of the session's actor; sessions without one count as one actor.
    actor: int


def actor_key(actor_id: str | None) -> int:
    """Return the key by which actors are distinguished."""
    return key_of("actor", actor_id) if actor_id else 0


@dataclass(slots=True)
class _Proof:
    """Sessions that gave a node one text, as few as decide; digits may differ between them."""

    sessions: set[str] = field(default_factory=set)
    actors: set[int] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)

    def needs(self, given: LabelText) -> bool:
        """Check whether another session, actor or spelling of the digits would change what is shown."""
        if given.session_id in self.sessions and given.text in self.texts:
            return False
        return (
            len(self.sessions) < MIN_SESSIONS
            or (len(self.actors) < MIN_ACTORS and given.actor not in self.actors)
            or (len(self.texts) < 2 and given.text not in self.texts)
        )

    def add(self, given: LabelText) -> None:
        self.sessions.add(given.session_id)
        self.actors.add(given.actor)
        self.texts.add(given.text)

    def is_shared(self, min_actors: int) -> bool:
        return len(self.sessions) >= MIN_SESSIONS and len(self.actors) >= min_actors


class NodeLabels:
    """Texts that name the nodes of one graph, with the sessions that prove each of them."""

    def __init__(self) -> None:
        #: Proofs by node and kind, then by the text's template.
        self._proofs: defaultdict[tuple[int, TextKind], dict[str, _Proof]] = defaultdict(dict)
        self._actors: set[int] = set()

    def restore(self, rows: Iterable[tuple[int, LabelText]]) -> None:
        """Take back stored texts, each with the number of its node."""
        for node, given in rows:
            self._add(node, template_of(given.text), given)

    def add_session(
        self, session_id: str, steps: Sequence[Step], number_of: Mapping[int, int], actor: int
    ) -> Iterator[LabelText]:
        """Add the texts of a session; yield those that have to be stored.

        Args:
            session_id: the session.
            steps: its steps.
            number_of: node of each micro-state.
            actor: key of its actor.
        """
        seen: set[tuple[int, TextKind, str]] = set()
        for step in steps:
            node = number_of[step.micro_key]
            for kind, text in _list_texts(step):
                if (node, kind, text) in seen:
                    continue
                seen.add((node, kind, text))
                given = LabelText(step.micro_key, kind, text, session_id, actor)
                template = template_of(text)
                if self._needs(node, template, given):
                    self._add(node, template, given)
                    yield given

    def name_nodes(self, labels: Sequence[str], kinds: Sequence[str], live: Sequence[int]) -> list[str]:
        """Return the label of each node, no two alike; a merged one has that of the node it belongs to.

        Args:
            labels: label of each node, by number, that needs no text of a page.
            kinds: action of each.
            live: number of the node that represents each.
        """
        lives = [number for number in range(len(labels)) if live[number] == number]
        shown = list(labels)
        for number in lives:
            bare = labels[number] or make_label(kinds[number], "")
            name = self._shared_text(number, TextKind.NAME)
            words = self._shared_text(number, TextKind.WORDS)
            # Of a name that is a number, the kind of element says more.
            is_number = name.replace("#", "numbered") == bare
            shown[number] = name if name and not is_number else self._locate(number, words or bare)
        self._distinguish_by_location(shown, lives)
        _distinguish_by_kind(shown, labels, kinds, lives)
        _distinguish_by_number(shown, lives)
        return [shown[number] for number in live]

    def _needs(self, node: int, template: str, given: LabelText) -> bool:
        proofs = self._proofs.get((node, given.kind), {})
        proof = proofs.get(template)
        if proof is None:
            # An actor who is new to the graph changes what the others must share.
            return len(proofs) <= _MAX_TEXTS or given.actor not in self._actors
        return proof.needs(given)

    def _add(self, node: int, template: str, given: LabelText) -> None:
        self._proofs[node, given.kind].setdefault(template, _Proof()).add(given)
        self._actors.add(given.actor)

    def _shared_text(self, node: int, kind: TextKind) -> str:
        """Return the text that sessions share, with digits where all agree; empty without one."""
        proofs = self._proofs.get((node, kind), {})
        min_actors = min(len(self._actors), MIN_ACTORS)
        shared = sorted(text for text, proof in proofs.items() if proof.is_shared(min_actors))
        is_varied = len(proofs) > _MAX_TEXTS or len(shared) > _MAX_SHARED
        if not shared or is_varied or len(proofs) > 2 * len(shared):
            return ""
        texts = proofs[shared[0]].texts
        return next(iter(texts)) if len(texts) == 1 else shared[0]

    def _locate(self, node: int, label: str) -> str:
        return f"{label} {self._shared_text(node, TextKind.LOCATION)}".rstrip()

    def _distinguish_by_location(self, shown: list[str], lives: Sequence[int]) -> None:
        for number in _find_equal(shown, lives):
            location = self._shared_text(number, TextKind.LOCATION)
            if location and not shown[number].endswith(f" {location}"):
                shown[number] = f"{shown[number]} {location}"


def _list_texts(step: Step) -> Iterator[tuple[TextKind, str]]:
    for name in step.names:
        yield TextKind.NAME, name
    if step.location:
        yield TextKind.LOCATION, step.location
    if step.words:
        yield TextKind.WORDS, step.words


def _find_equal(shown: Sequence[str], lives: Sequence[int]) -> list[int]:
    """Return the nodes whose label another one has too."""
    counts = Counter(shown[number] for number in lives)
    return [number for number in lives if counts[shown[number]] > 1]


def _distinguish_by_kind(
    shown: list[str], labels: Sequence[str], kinds: Sequence[str], lives: Sequence[int]
) -> None:
    """Add the kind of element to equal labels of elements of different kinds."""
    equal: defaultdict[str, list[int]] = defaultdict(list)
    for number in _find_equal(shown, lives):
        equal[shown[number]].append(number)
    for label, numbers in equal.items():
        if len({labels[number] for number in numbers}) == 1:
            continue
        for number in numbers:
            kind = labels[number].removeprefix(make_label(kinds[number], "")).strip()
            if kind and kind not in label.split():
                shown[number] = f"{label} ({kind})"


def _distinguish_by_number(shown: list[str], lives: Sequence[int]) -> None:
    """Add a number to each label that an older node has."""
    used = {shown[number] for number in lives}
    first: dict[str, int] = {}
    counts: Counter[str] = Counter()
    for number in lives:
        label = shown[number]
        if first.setdefault(label, number) == number:
            continue
        while shown[number] in used:
            counts[label] += 1
            shown[number] = f"{label} ({counts[label] + 1})"
        used.add(shown[number])
