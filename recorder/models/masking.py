"""Masking settings of a workspace or a workflow: built-in kinds and own patterns. Contract §3 (masking).

Expressions are compiled and measured when they are saved (`recorder.masking.admission`), not here: bodies are
validated on the event loop, and a hostile expression takes a while to compile.
"""

from typing import Annotated, Any, Literal

from pydantic import Field as WireField
from pydantic import field_validator

from recorder import limits
from recorder.models.wire import WireInput

Builtin = Literal["email", "card", "token"]


class MaskingPattern(WireInput):
    """One expression of a workspace's or a workflow's own."""

    name: str = WireField(pattern=limits.MASKING_NAME_PATTERN)
    pattern: str = WireField(min_length=1, max_length=limits.MASKING_PATTERN_CHARACTERS)
    #: Stands before the token that takes the place of what was found.
    replacement: str = WireField(default="", max_length=limits.MASKING_REPLACEMENT_CHARACTERS)

    @field_validator("name")
    @classmethod
    def _is_not_built_in(cls, name: str) -> str:
        if name in ("email", "card", "token"):
            raise ValueError("email, card and token name built-in kinds; choose another name")
        return name

    @field_validator("replacement")
    @classmethod
    def _is_printable(cls, replacement: str) -> str:
        if not replacement.isprintable():
            raise ValueError("takes printable characters")
        return replacement


class Masking(WireInput):
    """What is masked: nothing, until something is named here."""

    builtins: list[Builtin] = WireField(default_factory=list)
    patterns: Annotated[list[MaskingPattern], WireField(max_length=limits.MASKING_PATTERNS)] = WireField(
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
    def _have_own_names(cls, patterns: list[MaskingPattern]) -> list[MaskingPattern]:
        if len({pattern.name for pattern in patterns}) != len(patterns):
            raise ValueError("each pattern has a name of its own")
        return patterns

    def merged_into(self, stored: dict[str, Any] | None) -> dict[str, Any]:
        """What to store after a change: members that were sent replace those stored, the others stay."""
        sent = self.model_dump(include=self.model_fields_set)
        return {**Masking().model_dump(), **(stored or {}), **sent}
