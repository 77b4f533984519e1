"""Finding a workspace by what people call it. Spec §2.10."""

from sqlmodel import Session as DbSession
from sqlmodel import or_, select

from recorder.errors import NotFound
from recorder.models.workspace import WorkspaceRow


def find_workspace(db: DbSession, name_or_id: str) -> WorkspaceRow:
    """The workspace of this name or id.

    Raises:
        NotFound: if there is none.
    """
    named = or_(WorkspaceRow.name == name_or_id, WorkspaceRow.id == name_or_id)
    row = db.exec(select(WorkspaceRow).where(named)).first()
    if row is None:
        raise NotFound("workspace")
    return row
