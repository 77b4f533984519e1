"""Tenant: the workspace and mode that bound every query; scope of a graph: one workflow of a tenant."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Tenant:
    """Workspace and mode: data of one tenant is invisible to every other."""

    workspace_id: str
    #: `live` or `test`.
    mode: str


@dataclass(frozen=True, slots=True, order=True)
class GraphScope:
    """Identity of a memory graph: there is one for each workspace, mode and workflow."""

    tenant: Tenant
    workflow: str

    @property
    def workspace_id(self) -> str:
        """Workspace of the graph."""
        return self.tenant.workspace_id

    @property
    def mode(self) -> str:
        """Mode of the graph."""
        return self.tenant.mode
