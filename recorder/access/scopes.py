"""Scopes: `read`, `write`, `admin`, each including the former, and `replay:live` beside them. Contract §1."""

from dataclasses import dataclass
from typing import Literal, get_args

from recorder.errors import InsufficientScope

Level = Literal["read", "write", "admin"]
LEVELS: tuple[Level, ...] = get_args(Level)
LIVE_REPLAY = "replay:live"
_RANK = {level: rank for rank, level in enumerate(LEVELS)}


@dataclass(frozen=True, slots=True)
class Scope:
    """What a key may do."""

    level: Level
    live_replay: bool = False

    @classmethod
    def parse(cls, text: str) -> "Scope":
        """The scope that a text such as `write replay:live` names; the order of the words does not matter.

        Raises:
            ValueError: if it is none.
        """
        words = text.split(" ")
        levels = [level for level in LEVELS if level in words]
        rest = [word for word in words if word not in LEVELS]
        if len(levels) != 1 or rest not in ([], [LIVE_REPLAY]) or len(words) != 1 + len(rest):
            raise ValueError("a scope is read, write or admin, and may be followed by replay:live")
        return cls(levels[0], bool(rest))

    def includes(self, other: "Scope") -> bool:
        """Whether whoever holds this scope may hand out the other."""
        return self.reaches(other.level) and (self.live_replay or not other.live_replay)

    def reaches(self, level: Level) -> bool:
        """Whether this scope is of that level, or above it."""
        return _RANK[self.level] >= _RANK[level]

    def require(self, level: Level) -> None:
        """Let only scopes of that level pass.

        Raises:
            InsufficientScope: if this one lies below it.
        """
        if not self.reaches(level):
            raise InsufficientScope(level)

    def __str__(self) -> str:
        return f"{self.level} {LIVE_REPLAY}" if self.live_replay else self.level
