"""What writing some shards needs to know. Spec §4.3."""

from dataclasses import dataclass

from recorder.exports.destinations import Target
from recorder.exports.formats import FormatName
from recorder.exports.planning.sampling import Sampling
from recorder.exports.planning.sharding import PlannedShard
from recorder.tenant import Tenant


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """Some shards and where all that they hold comes from; it can be sent to another process."""

    workspace_id: str
    mode: str
    format: FormatName
    #: Shards of one kind and workflow, by bucket: they are read together.
    shards: list[PlannedShard]
    #: Pinned version of each lake table; None where the table did not exist.
    versions: dict[str, int | None]
    sampling: Sampling
    lake_url: str
    blob_url: str
    target: Target

    @property
    def tenant(self) -> Tenant:
        """Workspace and mode of the export."""
        return Tenant(self.workspace_id, self.mode)
