"""`/v1/workflows`: list, read, change settings. Spec §2.8, §4.2; contract §4 (workflow)."""

from typing import Annotated

from fastapi import APIRouter, Path, Request

from api.bodies.masking import AdmittedWorkflow
from api.dependencies import CallerDep, CursorText, Db, Limit, OriginDep, Pager
from api.errors import problem_responses
from api.gate.authentication import ForgettingDep
from api.strict_routes import StrictRoute
from recorder import clock, limits
from recorder.models.wire import Page
from recorder.models.workflow import Workflow
from recorder.recording import workflows

router = APIRouter(prefix="/v1/workflows", tags=["workflows"], route_class=StrictRoute)

# Told, not checked here: a malformed name in a path is not there, like any malformed id.
_Slug = Annotated[str, Path(json_schema_extra={"pattern": limits.WORKFLOW_PATTERN})]


@router.get("", responses=problem_responses(400, 401, 422))
def list_workflows(
    request: Request, db: Db, caller: CallerDep, cursor: CursorText = None, limit: Limit = limits.LIST_DEFAULT
) -> Page[Workflow]:
    """Workflows, newest first."""
    pager = Pager(request, caller)
    position = pager.read(cursor)
    before = (clock.from_ms(position[0]), position[1]) if position else None
    page, has_more = workflows.list_workflows(db, caller.tenant, before=before, limit=limit)
    return pager.page(page, [clock.to_ms(page[-1].created_at), page[-1].workflow] if has_more else None)


@router.get("/{workflow}", responses=problem_responses(401, 404))
def get_workflow(workflow: _Slug, db: Db, caller: CallerDep) -> Workflow:
    """One workflow: its settings, its sessions and the size of its graph."""
    return workflows.get_workflow(db, caller.tenant, workflow)


@router.patch("/{workflow}", responses=problem_responses(401, 403, 404, 422, 503))
def update_workflow(
    workflow: _Slug,
    body: AdmittedWorkflow,
    forgetting: ForgettingDep,
    db: Db,
    caller: CallerDep,
    origin: OriginDep,
) -> Workflow:
    """Change settings, ahead of the first session too; members that are not sent stay."""
    forgetting.workspace(caller.workspace_id)
    return workflows.update_workflow(db, caller.tenant, origin, workflow, body)
