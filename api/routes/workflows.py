"""`/v1/workflows`: list, read, change settings. Spec §2.8, §4.2; contract §4 (workflow)."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from api.bodies.body_masking import AdmittedWorkflow
from api.dependencies import CallerDep, Db, OriginDep, PagerDep
from api.errors import problem_responses
from api.gate.authentication import CallerInvalidationDep
from api.strict_routes import StrictRoute
from recorder import limits
from recorder.models.wire import Page
from recorder.models.workflow import Workflow
from recorder.recording import workflows

router = APIRouter(prefix="/v1/workflows", tags=["workflows"], route_class=StrictRoute)

# Documented, but not checked here: a malformed name in a path is answered 404, as a malformed id is.
_Slug = Annotated[str, Path(json_schema_extra={"pattern": limits.WORKFLOW_PATTERN})]


@router.get("", response_model=Page[Workflow])
def list_workflows(pager: PagerDep, db: Db, caller: CallerDep) -> Response:
    """List the workflows, newest first."""
    before = pager.read_cursor(tuple[int, str])
    return pager.make_answer(workflows.list_workflows(db, caller.tenant, before=before, limit=pager.limit))


@router.get("/{workflow}", responses=problem_responses(404))
def get_workflow(workflow: _Slug, db: Db, caller: CallerDep) -> Workflow:
    """Return a workflow: its settings, its sessions and the size of its graph."""
    return workflows.get_workflow(db, caller.tenant, workflow)


@router.patch("/{workflow}", responses=problem_responses(404))
def update_workflow(
    workflow: _Slug,
    body: AdmittedWorkflow,
    invalidation: CallerInvalidationDep,
    db: Db,
    caller: CallerDep,
    origin: OriginDep,
) -> Workflow:
    """Change settings, also before the first session; members that are not sent stay."""
    invalidation.add_workspace(caller.workspace_id)
    return workflows.update_workflow(db, caller.tenant, origin, workflow, body)
