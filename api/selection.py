"""Which sessions of a workflow a query of the memory graph asks about. Spec §4.2, contract §4."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query

from api.deps import CallerDep, TimeRange, TimeRangeDep
from recorder import limits
from recorder.models.wire import ActorKind, Outcome
from recorder.tenant import Tenant

WorkflowName = Annotated[str, Query(pattern=limits.WORKFLOW_PATTERN)]
Fraction = Annotated[float, Query(ge=0, le=1, allow_inf_nan=False)]


@dataclass(frozen=True)
class Selection:
    """A workflow of the caller, and the filters that all queries of its graph take."""

    tenant: Tenant
    workflow: str
    times: TimeRange
    outcome: Outcome | None
    actor_kind: ActorKind | None

    def asked(self) -> dict[str, Any]:
        """The arguments of a query."""
        filters = {"outcome": self.outcome, "actor_kind": self.actor_kind}
        return {**self.place(), "since": self.times.since, "until": self.times.until, **filters}

    def place(self) -> dict[str, Any]:
        """Whose graph it is."""
        return {"tenant": self.tenant, "workflow": self.workflow}


async def get_selection(
    caller: CallerDep,
    times: TimeRangeDep,
    workflow: WorkflowName,
    outcome: Outcome | None = None,
    actor_kind: Annotated[ActorKind | None, Query(alias="actor.kind")] = None,
) -> Selection:
    """The selection that a query names."""
    return Selection(caller.tenant, workflow, times, outcome, actor_kind)


SelectionDep = Annotated[Selection, Depends(get_selection)]
