"""`/v1/event_types`: what webhooks carry. Spec §6.1, contract §6."""

from fastapi import APIRouter

from api.errors import problem_responses
from api.strict_route import StrictRoute
from recorder.models.notification import EventTypes
from recorder.webhooks.catalogue import list_event_types

router = APIRouter(prefix="/v1/event_types", tags=["webhooks"], route_class=StrictRoute)


@router.get("", responses=problem_responses(401))
def get_event_types() -> EventTypes:
    """Every event type, with the JSON Schema of its payload."""
    return list_event_types()
