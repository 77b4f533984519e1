"""Adding to the audit log, in the transaction of the change. Contract §7 (audit)."""

from dataclasses import dataclass
from typing import Any, Literal

from sqlmodel import Session as DbSession


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a change comes from: a key's request, the operator's command line, or the service itself."""

    workspace_id: str
    actor_type: Literal["key", "operator", "system"]
    actor_id: str
    request_id: str | None = None
    ip: str | None = None


def record(
    db: DbSession,
    origin: Origin,
    action: str,
    *,
    resource_type: str,
    resource_id: str,
    outcome: Literal["success", "refused"] = "success",
    details: dict[str, Any] | None = None,
) -> None:
    """Add an entry to the workspace's chain.

    Args:
        action: `<resource>.<verb>`, such as `key.create`.
        details: what changed, in JSON types; never a secret, never recorded data.
    """
