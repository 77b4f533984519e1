"""Labels of steps: a verb and a noun that a person reads. Spec §2.6.

An element without a name is called by words that its program wrote: of its placeholder, test id, id, name,
address or classes; without any, by its role. Page text is no such word, since it may quote a person.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

#: Attributes that tests find an element by.
TEST_IDS = ("data-testid", "data-test-id", "data-test", "data-qa", "data-cy", "automation_id")
#: Attributes whose words can describe an element, the best first.
LABEL_ATTRIBUTES = ("placeholder", *TEST_IDS, "id", "name", "href", "class")
_VERBS = {
    # A step of an event log is called what it is called there.
    "activity": "",
    "dblclick": "Double-click",
    "llm_call": "Ask",
    "navigate": "Open",
    "select": "Choose",
    "tool_call": "Call",
    "type": "Type into",
    "fill": "Fill",
    "click:2": "Right-click",
}
_LABEL_CHARACTERS = 80
#: Other words for elements without a role; of the rest the tag is shown.
_KINDS = {
    "body": "page",
    "div": "element",
    "span": "element",
    "html": "page",
    "img": "image",
    "li": "list item",
    "listitem": "list item",
    "td": "cell",
    "tr": "row",
    "": "",
}
_WORD_ENDS = re.compile(r"[\W\d_]+|(?<=[a-z])(?=[A-Z])")
#: Beside a number a word of fewer letters says nothing, such as those of `ui-id-7`.
_WORD_LETTERS = 3


def make_label(action: str, noun: str) -> str:
    """Return the label of an action on something.

    Args:
        action: as `targets.action_token` gives it.
        noun: name or description of the object; may be empty.
    """
    return _make_label(action, noun[: 4 * _LABEL_CHARACTERS])


@lru_cache(maxsize=16_384)
def _make_label(action: str, noun: str) -> str:
    verb = _VERBS.get(action)
    if verb is None:
        kind, _, detail = action.partition(":")
        verb = kind.replace("_", " ").replace(".", " ").capitalize()
        if kind == "press":
            verb = f"Press {detail.partition(':')[2]} in"
    if verb.endswith(" in") and not noun.strip():
        verb = verb.removesuffix(" in")
    return " ".join(f"{verb} {noun}".split())[:_LABEL_CHARACTERS]


def describe_element(role: str, tag: str, attrs: Mapping[str, str]) -> str:
    """Return words for an element without a name.

    The role follows words that are no text for people.

    Args:
        role: its role, in lower case; may be empty.
        tag: its tag, in lower case; may be empty.
        attrs: those of `LABEL_ATTRIBUTES` that it has, as templates.
    """
    kind = _KINDS.get(role or tag, role or tag)
    for attribute in LABEL_ATTRIBUTES:
        text = attrs.get(attribute, "")
        if attribute == "href":
            path = text.partition("://")[2].partition("/")[2] if "://" in text else text
            text = path.partition("?")[0]
        elif attribute == "class":
            # The longest says the most, as of `ui-icon ui-icon-closethick`.
            text = max(text.split(), key=len, default="")
        words = _split_words(text)
        if words:
            is_whole = attribute == "placeholder" or not role or kind in words.split()
            return words if is_whole else f"{words} {kind}"
    return kind


def describe_named(name: str, role: str) -> str:
    """Return a name as a noun; of one without letters, such as `#`, the role says more."""
    if any(character.isalpha() for character in name) or not role:
        return name
    return f"numbered {_KINDS.get(role, role)}" if "#" in name else f"{name} {_KINDS.get(role, role)}"


@lru_cache(maxsize=16_384)
def _split_words(text: str) -> str:
    """Return the words of an identifier, in lower case; empty if they are a number's prefix."""
    words = list(dict.fromkeys(word.lower() for word in _WORD_ENDS.split(text) if word))
    if "#" in text and max(map(len, words), default=0) < _WORD_LETTERS:
        return ""
    return " ".join(words)
