"""What a change of settings was, as an audit entry tells it. Contract §7 (audit)."""

from typing import Any

from recorder.digest import sha256_of
from recorder.models.masking import Masking


def describe_changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The members that differ, each as it was and as it is; empty where none does."""
    return {
        name: {"from": before.get(name), "to": value}
        for name, value in after.items()
        if before.get(name) != value
    }


def describe_masking(masking: Masking) -> dict[str, Any]:
    """A masking policy without its expressions: they may name people, and entries outlive erasures."""
    patterns = {one.name: sha256_of([one.pattern, one.replacement]) for one in masking.patterns}
    return {"builtins": sorted(masking.builtins), "patterns": patterns}
