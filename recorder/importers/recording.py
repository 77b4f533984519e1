"""A recording made elsewhere, in the form all importers give and the upload takes. Contract §2 (imports)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from recorder.client.batches import CapturedFrame
from recorder.errors import Invalid


class UnreadableRecording(Invalid):
    """A file that is not a recording of its format."""


class NothingToImport(Invalid):
    """A path under which there is no recording."""

    def __init__(self, wanted: str) -> None:
        super().__init__(
            f"There are no {wanted} at this path; give a file, a folder, or a folder of folders."
        )


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One run of a workflow, ready to be uploaded as one session."""

    #: Slug of the workflow.
    workflow: str
    metadata: dict[str, Any]
    #: `{id, kind}`; kind is human, model or script.
    actor: dict[str, str]
    started_at: datetime
    #: Event items as the interface takes them.
    events: list[dict[str, Any]] = field(default_factory=list)
    frames: list[CapturedFrame] = field(default_factory=list)
    #: `{name, data?, t_ms}` each, in order.
    tags: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Source:
    """Where a recording comes from: it is read when its turn to be uploaded comes, not before."""

    #: What people call it (a file name); it stands in reports.
    name: str
    #: Reads it; raises `UnreadableRecording`.
    read: Callable[[], Recording]
