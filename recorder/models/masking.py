"""What a workspace or a workflow masks: built-in kinds and patterns of its own. Contract §3 (masking)."""

import re
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import re2
from pydantic import Field, field_validator

from recorder import limits
from recorder.models.wire import WireInput

Builtin = Literal["email", "card", "token"]

# Each text is scanned amid the JSON it came in, where it has no beginning and no end but those of a line.
# `\C` would cut a character in two.
_BEYOND_ASCII = re.compile(r"\\x\{[0-9A-Fa-f]+\}|[^\x00-\x7f]")
_NOT_TAKEN = re.compile(r"\\[AzC]|\(\?[a-zA-Z]*-[a-zA-Z]*m")
#: Texts on which an expression that can match nothing at all shows it.
_PROBES = ("", "a", "a 1", " .-", "é")


class MaskingPattern(WireInput):
    """One expression of a workspace's or a workflow's own."""

    name: str = Field(pattern=limits.MASKING_NAME_PATTERN)
    pattern: str = Field(min_length=1, max_length=limits.MASKING_PATTERN_CHARACTERS)
    #: Stands before the token that takes the place of what was found.
    replacement: str = Field(default="", max_length=limits.MASKING_REPLACEMENT_CHARACTERS)

    @field_validator("name")
    @classmethod
    def _is_not_built_in(cls, name: str) -> str:
        if name in ("email", "card", "token"):
            raise ValueError("email, card and token name built-in kinds; choose another name")
        return name

    @field_validator("pattern")
    @classmethod
    def _is_expression(cls, pattern: str) -> str:
        if _NOT_TAKEN.search(_without_pairs(pattern)):
            raise ValueError(r"\A, \z, \C and (?-m) are not taken; write ^ and $ for the ends of a line")
        measure_expression(pattern)
        return pattern

    @field_validator("replacement")
    @classmethod
    def _is_printable(cls, replacement: str) -> str:
        if not replacement.isprintable():
            raise ValueError("takes printable characters")
        return replacement


class Masking(WireInput):
    """What is masked: nothing, until something is named here."""

    builtins: list[Builtin] = Field(default_factory=list)
    patterns: Annotated[list[MaskingPattern], Field(max_length=limits.MASKING_PATTERNS)] = Field(
        default_factory=list
    )

    @field_validator("builtins")
    @classmethod
    def _are_named_once(cls, builtins: list[Builtin]) -> list[Builtin]:
        if len(set(builtins)) != len(builtins):
            raise ValueError("names each built-in kind once")
        return builtins

    @field_validator("patterns")
    @classmethod
    def _fit_together(cls, patterns: list[MaskingPattern]) -> list[MaskingPattern]:
        if len({pattern.name for pattern in patterns}) != len(patterns):
            raise ValueError("each pattern has a name of its own")
        sizes = [measure_expression(pattern.pattern) for pattern in patterns]
        if sum(size.states for size in sizes) > limits.MASKING_STATES:
            raise ValueError("too many states; use fewer patterns, or smaller counts of repetitions")
        if sum(size.instructions for size in sizes) > limits.MASKING_INSTRUCTIONS:
            raise ValueError("too large once compiled; use fewer Unicode classes")
        return patterns

    def merged_into(self, stored: dict[str, Any] | None) -> dict[str, Any]:
        """What to store after a change: members that were sent replace those stored, the others stay."""
        sent = self.model_dump(include=self.model_fields_set)
        return {**Masking().model_dump(), **(stored or {}), **sent}


def compile_expression(pattern: str, *, max_bytes: int = limits.MASKING_PATTERN_BYTES) -> Any:
    """The compiled form of an expression; `^` and `$` match at the ends of a line.

    Raises:
        ValueError: if RE2 does not take it, or it would need more memory.
    """
    options = re2.Options()
    options.max_mem = max_bytes
    options.log_errors = False  # RE2 would write the expression to stderr
    try:
        return re2.compile(f"(?m){pattern}", options)
    except re2.error as error:
        raise ValueError("not an RE2 expression, or too large: github.com/google/re2/wiki/Syntax") from error


class ExpressionSize(NamedTuple):
    """What an expression costs."""

    #: RE2 instructions: memory.
    instructions: int
    #: At how many of its places a scan may stand at once: steps a byte at worst.
    states: int


# Policies are validated whenever they are read, lists of them too.
@lru_cache(maxsize=10_000)
def measure_expression(pattern: str) -> ExpressionSize:
    """The size of an expression that is fit to mask with.

    Raises:
        ValueError: if it is not: RE2 does not take it, alone or among others, or it matches the empty text.
    """
    compiled = compile_expression(pattern)
    compile_expression(f"(?:{pattern})")  # not so after an open \Q
    if any(match.start() == match.end() for text in _PROBES for match in compiled.finditer(text)):
        raise ValueError("matches the empty text; let it require a character")
    return ExpressionSize(compiled.programsize, _count_states(pattern) or compiled.programsize)


def _count_states(pattern: str) -> int | None:
    """Instructions as if every character were one byte: a Unicode class is a thousand, but one place."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    narrow = _BEYOND_ASCII.sub(r"\\xff", pattern).encode()
    try:
        size: int = re2.compile(narrow, options).programsize
    except re2.error:  # such as a range that begins with a code point
        return None
    return size


def _without_pairs(pattern: str) -> str:
    """The pattern without escaped backslashes: what follows them is not escaped."""
    return pattern.replace("\\\\", "")
