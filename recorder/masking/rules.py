"""Masking rules: what finds the spans of a text that are masked, and how their tokens are made."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from recorder.masking.expressions import compile_expression

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
