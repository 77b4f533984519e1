"""RE2 expressions: compiled with a bound on memory, and measured by size. Contract §3 (masking)."""

import re
from functools import lru_cache
from typing import Any, NamedTuple

import re2

# Each text is scanned inside its JSON document, where it begins and ends as a line does. `\C` would split a
# character.
_NON_ASCII = re.compile(r"\\x\{[0-9A-Fa-f]+\}|[^\x00-\x7f]")
_REFUSED_SYNTAX = re.compile(r"\\[AzC]|\(\?[a-zA-Z]*-[a-zA-Z]*m")
#: Texts that detect an expression which matches the empty text.
_PROBES = ("", "a", "a 1", " .-", "é")

#: RE2's memory for one expression: its program, and the states of its fast automaton. With less memory a
#: counted repetition of some hundreds falls back to the slow automaton (20 to 300 times the time).
EXPRESSION_BYTES = 4 * 1024 * 1024
#: The memory of an expression over all rules of a policy.
UNION_BYTES = 16 * 1024 * 1024
#: The memory for the check whether an expression may be saved; only its program counts.
_PROGRAM_BYTES = 1024 * 1024


def compile_expression(pattern: str, *, max_bytes: int = EXPRESSION_BYTES, keeps_groups: bool = False) -> Any:
    """Return the compiled form of an expression; `^` and `$` match at the ends of a line.

    Args:
        pattern: The RE2 expression.
        max_bytes: The memory that RE2 may use for it.
        keeps_groups: Whether matches have the spans of groups, which takes a second, slower pass.

    Raises:
        ValueError: If RE2 refuses the expression, or its program needs more memory.
    """
    options = re2.Options()
    options.max_mem = max_bytes
    options.never_capture = not keeps_groups
    options.log_errors = False  # RE2 would write the expression to stderr
    try:
        return re2.compile(f"(?m){pattern}", options)
    except re2.error as error:
        raise ValueError("not an RE2 expression, or too large: github.com/google/re2/wiki/Syntax") from error


class ExpressionSize(NamedTuple):
    """The size of a compiled expression."""

    #: RE2 instructions, which take the memory.
    instructions: int
    #: States in which a scan may be at once: the most steps per byte.
    states: int


@lru_cache(maxsize=1_000)
def measure_expression_size(pattern: str) -> ExpressionSize:
    """Return the size of an expression that is fit to mask with.

    Raises:
        ValueError: If RE2 refuses the expression, alone or in a union, or it matches the empty text.
    """
    if _REFUSED_SYNTAX.search(_remove_escaped_backslashes(pattern)):
        raise ValueError(r"\A, \z, \C and (?-m) are not taken; write ^ and $ for the ends of a line")
    compiled = compile_expression(pattern, max_bytes=_PROGRAM_BYTES)
    compile_expression(f"(?:{pattern})", max_bytes=_PROGRAM_BYTES)  # fails after an open \Q
    if any(match.start() == match.end() for text in _PROBES for match in compiled.finditer(text)):
        raise ValueError("matches the empty text; let it require a character")
    return ExpressionSize(compiled.programsize, _count_states(pattern) or compiled.programsize)


def _count_states(pattern: str) -> int | None:
    """Count instructions as if characters were bytes: a Unicode class has a thousand, but is one state."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    narrow = _NON_ASCII.sub(r"\\xff", pattern).encode()
    try:
        size: int = re2.compile(narrow, options).programsize
    except re2.error:  # such as a range that begins with a code point
        return None
    return size


def _remove_escaped_backslashes(pattern: str) -> str:
    """Return the pattern without pairs of backslashes, so that each one left escapes a character."""
    return pattern.replace("\\\\", "")
