"""Whose bucket it is: an object in it names the workspaces whose files it takes. Decision 0024.

Whoever may write to a bucket may claim it. Without a claim, a client could name any bucket that the service's
own rights reach: another customer's, or the operator's.
"""

from recorder.errors import InvalidDestination
from recorder.exports.destinations.store import Store

#: `<this>/<workspace id>` is the key of the object, whose content does not matter.
CLAIMS = "recorder-workspaces"


def require_claim(store: Store, workspace_id: str) -> None:
    """See that a bucket or container takes files of a workspace.

    Raises:
        InvalidDestination: if it does not say so.
    """
    key = f"{CLAIMS}/{workspace_id}"
    try:
        store.size(key)
    except KeyError as error:
        text = f"There is no such bucket, or no object {key} in it, which would say that it is yours."
        raise InvalidDestination(text) from error
