"""Tenant: the workspace and mode that bound every query."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Tenant:
    """Workspace and mode: data of one tenant is invisible to every other."""

    workspace_id: str
    #: `live` or `test`.
    mode: str
