"""Findings of the checks of a deployment: one line each, with the next step where something is wrong."""

from typing import Literal, NamedTuple

State = Literal["ok", "warning", "error"]

_SHOWN = 3


class Finding(NamedTuple):
    """Result of one check."""

    check: str
    state: State
    message: str
    #: What the operator does next; empty where nothing is to be done.
    fix: str = ""


def join_names(names: list[str]) -> str:
    """Return the first names, and whether there are more."""
    return ", ".join(sorted(names)[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
