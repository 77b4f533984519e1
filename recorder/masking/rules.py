"""Tokens: what stands in the place of a masked value, the same for the same value. Contract §8."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from recorder.digest import keyed_digest
from recorder.masking.expressions import compile_expression

_DIGITS = 16
TOKEN = re.compile(rf"‹[a-z][a-z0-9_]{{0,31}}:[0-9a-f]{{{_DIGITS}}}›".encode())


def masking_key(secret: bytes, workspace_id: str) -> bytes:
    """The key of a workspace's tokens: equal values of two workspaces cannot be told to be equal."""
    return keyed_digest(secret, "masking-key", workspace_id.encode())


def token_digest(key: bytes, value: str) -> str:
    """The hex digits by which a token stands for a value; whatever found the value, they are the same."""
    return keyed_digest(key, "masked-value", value.encode()).hex()[:_DIGITS]


def token(name: str, digest: str) -> str:
    """The token itself, such as `‹email:3f2a90c1d4e5f607›`."""
    return f"‹{name}:{digest}›"


def plain_email(text: str) -> str:
    """An address as it is compared: a mailbox has one spelling, whatever an address bar made of it."""
    return text.replace("%40", "@").replace("＠", "@").lower()


def plain_card(text: str) -> str:
    """The digits of a card number, however they were grouped."""
    return "".join(letter for letter in text if letter.isdigit())


def subject_digests(key: bytes, subject: str) -> frozenset[str]:
    """The digits of every token that may stand for a person's id: erasure looks for them."""
    return frozenset(
        token_digest(key, value) for value in (subject, plain_email(subject), plain_card(subject)) if value
    )


#: First byte of a span of UTF-8 text, and the byte behind it.
Span = tuple[int, int]


def _as_it_is(text: str) -> str:
    return text


@dataclass(frozen=True)
class Rule:
    """One built-in kind or one pattern."""

    name: str
    #: An expression that matches wherever `find` finds something, and rather more than less.
    hint: str
    find: Callable[[bytes], Iterator[Span]]
    #: The form of a value that its token is made of: spellings that mean the same get the same token.
    plain: Callable[[str], str] = _as_it_is
    #: Stands before the token.
    replacement: str = ""

    @classmethod
    def of(cls, pattern: Mapping[str, str]) -> "Rule":
        """Return the rule of a workspace's or a workflow's own pattern, as it is stored."""
        expression = compile_expression(pattern["pattern"])

        def find(text: bytes) -> Iterator[Span]:
            return (match.span() for match in expression.finditer(text))

        return cls(pattern["name"], pattern["pattern"], find, replacement=pattern.get("replacement", ""))
