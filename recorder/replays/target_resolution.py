"""Resolution of a recorded target on a page: votes of its selectors, then a check of identity. Spec §4.6.

Verified before acting: an element that only some selectors still match may be another one. The page is a
stored snapshot, or a live page read in the same form, so one function decides for both sandboxes.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from recorder.memory.steps.action_tokens import CONTROL_ROLES, normal_name
from recorder.replays.budget import Budget, BudgetExceeded
from recorder.replays.css import UnusableSelector
from recorder.replays.dom import DomDocument, DomElement, find_dom_element_role, read_dom_element_text
from recorder.replays.replay_results import Suggestion
from recorder.replays.selectors import (
    Selector,
    escape_css,
    find_single_element_by_selector,
    is_usable_selector,
    kind_of_selector,
    make_selectors,
)

TargetFinding = Literal["matched", "relabelled", "target_missing", "target_ambiguous", "target_changed"]
_WEIGHTS = {"test_id": 5, "aria": 4, "attribute": 3, "text": 2, "path": 1, "xpath": 1}
_ENOUGH = 4
#: An identity that others share this much of is the same one under another label.
_LEAST_SHARED_WORDS = 0.34
#: Visits for all selectors of one target, and selectors that are read.
RESOLVE_VISITS = 100_000
_MAX_SELECTORS = 16
#: Characters that are shown of a selector: each replay stores one for each of its up to 5,000 steps.
_LOCATOR_CHARACTERS = 500
#: Attributes that tell elements apart, the best first.
_TELLING = ("name", "href", "placeholder")
_LEAST_SCORE = 0.55
_MAX_SUGGESTIONS = 5
_SUGGESTION_VISITS = 2_000


@dataclass(frozen=True, slots=True)
class Resolution:
    """The element that a target resolves to, or the reason why there is none."""

    finding: TargetFinding
    #: The element to act on, or the one that was refused.
    element: DomElement | None = None
    #: The selector of the most weight that voted for it, cut where it is long.
    locator: str | None = None

    @property
    def is_found(self) -> bool:
        """True if the element may be acted on."""
        return self.finding in ("matched", "relabelled")


@dataclass(slots=True)
class _SelectorVotes:
    element: DomElement
    kinds: dict[str, Selector]
    weight: int = 0

    def add(self, kind: str, selector: Selector) -> None:
        """Count the vote of a selector, the first of its kind."""
        if kind not in self.kinds:
            self.kinds[kind] = selector
            self.weight += _WEIGHTS[kind]


def resolve_target(
    document: DomDocument, target: Mapping[str, Any], whole: Budget | None = None
) -> Resolution:
    """Return the element that a recorded target is on a page.

    Each selector that matches one visible element alone votes for it, with the weight of its kind; each kind
    counts once. The element needs a weight of 4, more than any other, and the recorded role and name.

    Args:
        document: the page.
        target: the event's `target`.
        whole: budget of the replay.

    Raises:
        BudgetExceeded: if the budget of the whole replay ends.
    """
    votes = _collect_selector_votes(document, target, whole)
    ranked = sorted(votes.values(), key=lambda vote: -vote.weight)
    if not ranked:
        return Resolution("target_missing")
    best = ranked[0]
    locator = _show_voted_locator(best)
    if best.weight < _ENOUGH:
        return Resolution("target_missing", best.element, locator)
    if len(ranked) > 1 and ranked[1].weight == best.weight:
        return Resolution("target_ambiguous", best.element, locator)
    identity = _compare_identity(document, best.element, target)
    if identity is None:
        return Resolution("target_changed", best.element, locator)
    return Resolution(identity, best.element, locator)


def suggest_targets(document: DomDocument, target: Mapping[str, Any]) -> tuple[Suggestion, ...]:
    """Return the elements that resemble a target, the best first; never acted on by themselves."""
    wanted = _describe_searched_target(target)
    scored = []
    for element in document.elements[:_SUGGESTION_VISITS]:
        if not element.visible or not (find_dom_element_role(element) or element.tag == target.get("tag")):
            continue
        score = _score_target_likeness(wanted, _describe_resolved_element(document, element))
        if score >= _LEAST_SCORE:
            scored.append((-score, element.index, element))
    scored.sort(key=lambda entry: entry[:2])
    return tuple(
        Suggestion(_find_cheapest_selector(document, element), round(-score, 2))
        for score, _, element in scored[:_MAX_SUGGESTIONS]
    )


def list_selectors_to_resolve(target: Mapping[str, Any]) -> list[Selector]:
    """Return the selectors of a target.

    Role and name replace an `aria/` selector that is missing, attributes for one by attribute.
    """
    selectors: list[Selector] = list(
        filter(is_usable_selector, (target.get("selectors") or ())[:_MAX_SELECTORS])
    )
    kinds = {kind_of_selector(selector) for selector in selectors}
    name, role = target.get("name"), target.get("role")
    if name and role and '"' not in role and "aria" not in kinds:
        selectors.append(f'aria/{name}[role="{role}"]')
    attrs = target.get("attrs") or {}
    if "attribute" not in kinds:
        tag = target.get("tag") or ""
        selectors += [
            f'{tag}[{attribute}="{escape_css(attrs[attribute])}"]'
            for attribute in _TELLING
            if attrs.get(attribute)
        ]
    return selectors


def _collect_selector_votes(
    document: DomDocument, target: Mapping[str, Any], whole: Budget | None
) -> dict[int, _SelectorVotes]:
    budget = Budget(RESOLVE_VISITS, whole)
    votes: dict[int, _SelectorVotes] = {}
    selectors = [(selector, kind_of_selector(selector)) for selector in list_selectors_to_resolve(target)]
    for number, (selector, kind) in enumerate(selectors):
        if votes and _is_target_vote_decided(votes.values(), {left for _, left in selectors[number:]}):
            break
        try:
            element = find_single_element_by_selector(document, selector, budget)
        except UnusableSelector:
            continue
        except BudgetExceeded:
            if budget.left >= 0:
                raise  # that of the whole replay
            break
        if element is not None:
            votes.setdefault(element.index, _SelectorVotes(element, {})).add(kind, selector)
    return votes


def _is_target_vote_decided(votes: Collection[_SelectorVotes], left: Collection[str]) -> bool:
    """Return whether selectors of the kinds that are left can change neither the element nor its locator."""
    weights = sorted((vote.weight for vote in votes), reverse=True)
    best = max(votes, key=lambda vote: vote.weight)
    lead = weights[0] - (weights[1] if len(weights) > 1 else 0)
    return (
        weights[0] >= _ENOUGH
        and lead > sum(_WEIGHTS[kind] for kind in left)
        and max(_WEIGHTS[kind] for kind in left) <= max(_WEIGHTS[kind] for kind in best.kinds)
    )


def _compare_identity(
    document: DomDocument, element: DomElement, target: Mapping[str, Any]
) -> Literal["matched", "relabelled"] | None:
    """Return whether role and name are the recorded ones; None for another element."""
    role = (target.get("role") or "").lower()
    if role and find_dom_element_role(element) != role:
        return None
    tag = (target.get("tag") or "").lower()
    if not role and tag and element.tag != tag:
        return None
    kind, observed_kind = (target.get("attrs") or {}).get("type"), element.read_attribute("type")
    if kind and observed_kind and kind != observed_kind:
        return None
    recorded = target.get("name")
    wanted = normal_name(recorded or target.get("text") or "")
    if not wanted:
        # An element that had no name is not one that has.
        shown = document.find_name(element) if role in CONTROL_ROLES else element.own_text.strip()
        return None if shown else "matched"
    observed = normal_name(document.find_name(element) if recorded else read_dom_element_text(element))
    if not recorded and observed.startswith(wanted):
        return "matched"
    if observed == wanted:
        return "matched"
    return "relabelled" if has_same_words(wanted, observed) else None


def has_same_words(name: str, other: str) -> bool:
    """Return whether two names share as many words as one element under two labels does."""
    return _compare_target_words(normal_name(name), normal_name(other)) >= _LEAST_SHARED_WORDS


def _compare_target_words(text: str, other: str) -> float:
    """Return the Jaccard index of the words of two texts."""
    words, others = set(text.split()), set(other.split())
    union = len(words | others)
    return len(words & others) / union if union else 0.0


def _show_voted_locator(votes: _SelectorVotes) -> str:
    kind = max(votes.kinds, key=lambda kind: _WEIGHTS[kind])
    selector = votes.kinds[kind]
    shown = selector if isinstance(selector, str) else " >> ".join(selector)
    if len(shown) <= _LOCATOR_CHARACTERS:
        return shown
    return shown[: _LOCATOR_CHARACTERS - 1] + "…"


#: Weight of each property in a suggestion's score; words are compared in those of `_WORDY`.
_LIKENESS = {
    "name": 3.0, "role": 2.0, "text": 2.0, "placeholder": 1.5, "name_attribute": 1.5, "near": 1.5, "tag": 1.0,
    "id": 1.0, "type": 1.0, "href": 1.0,
}  # fmt: skip
_WORDY = frozenset(("name", "text", "placeholder", "near"))


def _describe_searched_target(target: Mapping[str, Any]) -> dict[str, str]:
    attrs = target.get("attrs") or {}
    given = {
        **{name: target.get(name) for name in ("name", "role", "text", "tag", "near")},
        **{name: attrs.get(name) for name in ("placeholder", "id", "type", "href")},
        "name_attribute": attrs.get("name"),
    }
    return {
        name: normal_name(value) if name in _WORDY else value.lower()
        for name, value in given.items()
        if isinstance(value, str) and value
    }


def _describe_resolved_element(document: DomDocument, element: DomElement) -> dict[str, str]:
    around = element.parent
    given = {
        "name": document.find_name(element), "role": find_dom_element_role(element), "tag": element.tag,
        "text": " ".join(element.own_text.split())[:80],
        "near": read_dom_element_text(around)[:80] if around else "",
        "name_attribute": element.read_attribute("name"),
        **{name: element.read_attribute(name) for name in ("placeholder", "id", "type", "href")},
    }  # fmt: skip
    return {
        name: normal_name(value) if name in _WORDY else value.lower()
        for name, value in given.items()
        if value
    }


def _score_target_likeness(wanted: Mapping[str, str], observed: Mapping[str, str]) -> float:
    total = sum(_LIKENESS[name] for name in wanted)
    score = 0.0
    for name, value in wanted.items():
        other = observed.get(name, "")
        if name in _WORDY:
            score += _LIKENESS[name] * _compare_target_words(value, other)
        elif value == other:
            score += _LIKENESS[name]
    return score / total if total else 0.0


def _find_cheapest_selector(document: DomDocument, element: DomElement) -> str:
    """Return the cheapest selector that matches an element alone, else its path."""
    selectors: Sequence[str] = make_selectors(document, element)
    for selector in selectors:
        try:
            if find_single_element_by_selector(document, selector, Budget(RESOLVE_VISITS)) is element:
                return selector
        except (UnusableSelector, BudgetExceeded):
            continue
    return selectors[-1]
