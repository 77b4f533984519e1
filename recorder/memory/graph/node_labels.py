"""Labels of nodes in a graph: which texts of sessions are shared by enough actors to be shown. Spec §2.6.

A text names a node where at least `MIN_SESSIONS` sessions share it, of two actors where the workflow has two.
So many sessions are kept for each text as prove that, and no more.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from recorder.memory.graph.capacity import TEXT_BYTES
from recorder.memory.steps.action_tokens import hash_texts, text_template_of
from recorder.memory.steps.session_steps import Step
from recorder.memory.steps.step_labels import make_step_label

#: Sessions that must share a text before it is shown.
MIN_SESSIONS = 3
#: Actors that must share it where the workflow has as many.
MIN_ACTORS = 2
#: A node with more different texts of one kind is an item of a list: none of them is its name.
_MAX_TEXTS = 8
#: More shared names than this say that the node has no name of its own.
_MAX_SHARED = 2
#: Shared locations of a node that are listed, and shared spellings of the digits of a text.
_MAX_LISTED = 3
#: Texts that are remembered as settled: texts that differ in digits alone may be without number.
_MAX_SETTLED = 50_000
#: First words of locations, those that say the most first.
_PREPOSITIONS = ("near ", "in ", "on ")
#: No key of an actor: those have 64 bits.
_NO_ACTOR = -(2**64)
_DIGITS = re.compile(r"(\d+)")
_VARIED = re.compile("#+")
#: A number that varies, without a space between it and other characters.
_CODE = re.compile(r"[^\s#]#|#[^\s#]")


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


def compute_actor_key(actor_id: str | None) -> int:
    """Return the key by which actors are distinguished."""
    return hash_texts("actor", actor_id) if actor_id else 0


@dataclass(slots=True)
class _Sharers:
    """Sessions and actors that share a text, as few as decide."""

    sessions: set[str] = field(default_factory=set)
    actors: set[int] = field(default_factory=set)

    def needs(self, given: LabelText) -> bool:
        """Check whether another session or actor would change what is shown."""
        return given.session_id not in self.sessions and (
            len(self.sessions) < MIN_SESSIONS
            or (len(self.actors) < MIN_ACTORS and given.actor not in self.actors)
        )

    def add(self, given: LabelText) -> None:
        self.sessions.add(given.session_id)
        self.actors.add(given.actor)

    def is_settled(self, actor: int) -> bool:
        """Check whether no further session of this actor changes what is shown."""
        return len(self.sessions) >= MIN_SESSIONS and (len(self.actors) >= MIN_ACTORS or actor in self.actors)

    def are_enough(self, min_actors: int) -> bool:
        return len(self.sessions) >= MIN_SESSIONS and len(self.actors) >= min_actors


@dataclass(slots=True)
class _LabelProof:
    """Sessions that gave a node one text, whatever its digits, and those of each spelling of the digits."""

    all: _Sharers = field(default_factory=_Sharers)
    spellings: dict[str, _Sharers] = field(default_factory=dict)

    def needs(self, given: LabelText) -> bool:
        """Check whether another session, actor or spelling of the digits would change what is shown."""
        if self.all.needs(given):
            return True
        if len(self.spellings) > _MAX_LISTED:
            return False
        spelling = self.spellings.get(given.text)
        return spelling is None or spelling.needs(given)

    def add(self, given: LabelText) -> None:
        self.all.add(given)
        self.spellings.setdefault(given.text, _Sharers()).add(given)

    def is_settled(self, given: LabelText) -> bool:
        """Check whether no further session of this actor needs to give the text."""
        if not self.all.is_settled(given.actor):
            return False
        spelling = self.spellings.get(given.text)
        return len(self.spellings) > _MAX_LISTED or (
            spelling is not None and spelling.is_settled(given.actor)
        )

    def spell(self, template: str, min_actors: int) -> str:
        """Return the text with its digits where they are few and each is shared, else its template."""
        texts = list(self.spellings)
        if len(texts) == 1:
            return texts[0]
        is_shown = len(texts) <= _MAX_LISTED and all(
            sharers.are_enough(min_actors) for sharers in self.spellings.values()
        )
        return _join_digits(texts) if is_shown else template


def _join_digits(texts: Sequence[str]) -> str:
    """Return texts that differ in digits alone as one, such as `Tab 1, 2 or 3`; a template if in several."""
    parts = [_DIGITS.split(text) for text in texts]
    if len({len(part) for part in parts}) > 1:
        return text_template_of(texts[0])
    varied = [index for index, column in enumerate(zip(*parts, strict=True)) if len(set(column)) > 1]
    if len(varied) != 1:
        return text_template_of(texts[0])
    index = varied[0]
    numbers = sorted((part[index] for part in parts), key=lambda number: (len(number), number))
    return "".join([*parts[0][:index], _join_label_words(numbers), *parts[0][index + 1 :]])


def _join_label_words(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


class NodeLabels:
    """Texts that name the nodes of one graph, with the sessions that prove each of them."""

    def __init__(self, settled: MutableMapping[tuple[int, TextKind, str], int] | None = None) -> None:
        """Hold no text yet.

        Args:
            settled: keeps the texts of nodes that need no further session of an actor, with the last such
                actor: work that repeats gives the same texts again and again.
        """
        #: Proofs by node and kind, then by the text's template.
        self._proofs: defaultdict[tuple[int, TextKind], dict[str, _LabelProof]] = defaultdict(dict)
        self._actors: set[int] = set()
        self._settled = {} if settled is None else settled
        #: Estimated memory.
        self.nbytes = 0

    def restore(self, rows: Iterable[tuple[int, LabelText]]) -> None:
        """Load stored texts, each with the number of its node."""
        for node, given in rows:
            self._add_text(node, text_template_of(given.text), given)

    def add_session(
        self,
        session_id: str,
        steps: Sequence[Step],
        number_of: Mapping[int, int],
        actor: int,
        *,
        max_bytes: int | None = None,
    ) -> Iterator[LabelText]:
        """Add the texts of a session; yield those that have to be stored.

        Without room no text is added, but for that which shows that the graph has another actor.

        Args:
            session_id: the session.
            steps: its steps.
            number_of: node of each micro-state.
            actor: key of its actor.
            max_bytes: memory that all texts may take.
        """
        seen: set[tuple[int, TextKind, str]] = set()
        for step in steps:
            node = number_of[step.micro_key]
            for kind, text in _list_node_label_texts(step):
                text_key = (node, kind, text)
                if self._settled.get(text_key, _NO_ACTOR) == actor or text_key in seen:
                    continue
                seen.add(text_key)
                given = LabelText(step.micro_key, kind, text, session_id, actor)
                template = text_template_of(text)
                has_room = max_bytes is None or self.nbytes < max_bytes or self._is_new_actor(actor)
                if has_room and self._needs_text(node, template, given):
                    self._add_text(node, template, given)
                    yield given

    def name_nodes(
        self, labels: Sequence[str], kinds: Sequence[str], representatives: Sequence[int]
    ) -> list[str]:
        """Return the label of each node, no two alike; a merged one has that of the node it belongs to.

        Args:
            labels: label of each node, by number, that needs no text of a page.
            kinds: action of each.
            representatives: number of the node that each was merged into, or its own.
        """
        unmerged = [number for number in range(len(labels)) if representatives[number] == number]
        shown = list(labels)
        for number in unmerged:
            bare = labels[number] or make_step_label(kinds[number], "")
            name = self._find_shared(number, TextKind.NAME)
            words = self._find_shared(number, TextKind.WORDS)
            # The kind of element says more than a number, and words more than a code such as `INV-#`.
            is_number = name.replace("#", "numbered") == bare
            if name and not is_number and not (words and _CODE.search(name)):
                shown[number] = name
            else:
                location = next(iter(self._list_locations(number)), "")
                shown[number] = f"{words or bare} {location}".rstrip()
        self._distinguish_by_location(shown, unmerged)
        _distinguish_labels_by_kind(shown, labels, kinds, unmerged)
        _distinguish_labels_by_number(shown, unmerged)
        return [shown[number] for number in representatives]

    def _is_new_actor(self, actor: int) -> bool:
        """Check whether an actor is new to the graph and decides how many must share a text."""
        return len(self._actors) < MIN_ACTORS and actor not in self._actors

    def _needs_text(self, node: int, template: str, given: LabelText) -> bool:
        """Return whether a text can still help to prove the label of a node."""
        proofs = self._proofs.get((node, given.kind), {})
        proof = proofs.get(template)
        if proof is None:
            # An actor who is new to the graph changes what the others must share.
            return len(proofs) <= _MAX_TEXTS or given.actor not in self._actors
        if proof.is_settled(given):
            if len(self._settled) == _MAX_SETTLED:
                self._settled.clear()
            self._settled[node, given.kind, given.text] = given.actor
            return False
        return proof.needs(given)

    def _add_text(self, node: int, template: str, given: LabelText) -> None:
        self._proofs[node, given.kind].setdefault(template, _LabelProof()).add(given)
        self._actors.add(given.actor)
        self.nbytes += TEXT_BYTES + len(given.text)

    def _find_shared(self, node: int, kind: TextKind) -> str:
        """Return the name or words that sessions share; empty without such."""
        return next(iter(self._list_shared(self._proofs.get((node, kind), {}), _MAX_SHARED)), "")

    def _list_shared(self, proofs: Mapping[str, _LabelProof], limit: int) -> list[str]:
        """Return the texts that sessions share, with digits where these are; none if the texts vary much."""
        min_actors = min(len(self._actors), MIN_ACTORS)
        shared = sorted(text for text, proof in proofs.items() if proof.all.are_enough(min_actors))
        if len(proofs) > _MAX_TEXTS or len(shared) > limit or len(proofs) > 2 * len(shared):
            return []
        return [proofs[text].spell(text, min_actors) for text in shared]

    def _list_locations(self, node: int) -> list[str]:
        """Return where sessions agree that a node is, the best first; up to three alternatives are joined."""
        proofs = self._proofs.get((node, TextKind.LOCATION), {})
        located = []
        for preposition in _PREPOSITIONS:
            some = {text: proof for text, proof in proofs.items() if text.startswith(preposition)}
            shared = self._list_shared(some, _MAX_LISTED)
            # Numbers that vary place nothing.
            words = [" ".join(_VARIED.sub("", text).split()).removeprefix(preposition) for text in shared]
            if words:
                located.append(preposition + _join_label_words(list(dict.fromkeys(words))))
        return located

    def _distinguish_by_location(self, shown: list[str], unmerged: Sequence[int]) -> None:
        """Add to equal labels the first location in which their nodes differ."""
        for preposition in _PREPOSITIONS:
            equal: defaultdict[str, dict[int, str]] = defaultdict(dict)
            for number in _find_equal_labels(shown, unmerged):
                located = self._list_locations(number)
                location = next((text for text in located if text.startswith(preposition)), "")
                equal[shown[number]][number] = location
            for label, locations in equal.items():
                if len(set(locations.values())) == 1:
                    continue
                for number, location in locations.items():
                    if location and not label.endswith(f" {location}"):
                        shown[number] = f"{label} {location}"


def _list_node_label_texts(step: Step) -> Iterator[tuple[TextKind, str]]:
    for name in step.names:
        yield TextKind.NAME, name
    for location in step.locations:
        yield TextKind.LOCATION, location
    if step.words:
        yield TextKind.WORDS, step.words


def _find_equal_labels(shown: Sequence[str], unmerged: Sequence[int]) -> list[int]:
    """Return the nodes whose label another one has too."""
    counts = Counter(shown[number] for number in unmerged)
    return [number for number in unmerged if counts[shown[number]] > 1]


def _distinguish_labels_by_kind(
    shown: list[str], labels: Sequence[str], kinds: Sequence[str], unmerged: Sequence[int]
) -> None:
    """Add the kind of element to equal labels of elements of different kinds."""
    equal: defaultdict[str, list[int]] = defaultdict(list)
    for number in _find_equal_labels(shown, unmerged):
        equal[shown[number]].append(number)
    for label, numbers in equal.items():
        if len({labels[number] for number in numbers}) == 1:
            continue
        for number in numbers:
            kind = labels[number].removeprefix(make_step_label(kinds[number], "")).strip()
            if kind and kind not in label.split():
                shown[number] = f"{label} ({kind})"


def _distinguish_labels_by_number(shown: list[str], unmerged: Sequence[int]) -> None:
    """Add a number to each label that an older node has."""
    used = {shown[number] for number in unmerged}
    first: dict[str, int] = {}
    counts: Counter[str] = Counter()
    for number in unmerged:
        label = shown[number]
        if first.setdefault(label, number) == number:
            continue
        while shown[number] in used:
            counts[label] += 1
            shown[number] = f"{label} ({counts[label] + 1})"
        used.add(shown[number])
