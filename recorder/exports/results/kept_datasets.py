"""Datasets with an export that is kept: the others have no partition in Dagster any more. Spec §4.3.

Tags name datasets, so each request may name a new one. A dataset is kept while it has a recipe, an export
that is queued or running, or a recent one: files that are not expired, or a failure of the last days, among
the newest exports of its workspace and mode.
"""

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import func, select
from sqlmodel import Session as DbSession
from sqlmodel import col

from recorder import clock, limits
from recorder.exports.requests.recipes import list_recipe_datasets
from recorder.ids import first_id_at
from recorder.models.export import OPEN_STATUSES, ExportRow
from recorder.storage.conditions import in_tenant
from recorder.tenant import Tenant

_FAILURE_TIME = timedelta(days=limits.DAGSTER_DAYS)


class KeptDatasets:
    """Check of names of datasets, which remembers the oldest export that counts of each workspace."""

    def __init__(self) -> None:
        self._oldest_ids: dict[Tenant, str] = {}
        self._oldest_failure = first_id_at("exp", clock.now() - _FAILURE_TIME)

    def select_kept(self, db: DbSession, names: Collection[str]) -> set[str]:
        """Return the datasets among these that are kept.

        Args:
            db: a transaction; it need not be a write transaction.
            names: names of datasets, a few hundred at most.
        """
        kept = list_recipe_datasets(db) & set(names)
        dataset, status = col(ExportRow.dataset), col(ExportRow.status)
        workspace, mode = col(ExportRow.workspace_id), col(ExportRow.mode)
        newest = select(dataset, workspace, mode, status, func.max(col(ExportRow.id))).where(
            dataset.in_(set(names) - kept), col(ExportRow.expired_at).is_(None)
        )
        rows = db.connection().execute(newest.group_by(dataset, workspace, mode, status))
        for name, workspace_id, of_mode, of_status, export_id in rows:
            if of_status in OPEN_STATUSES or export_id >= self._find_oldest_id(
                db, Tenant(workspace_id, of_mode), is_failure=of_status == "failed"
            ):
                kept.add(name)
        return kept

    def _find_oldest_id(self, db: DbSession, tenant: Tenant, *, is_failure: bool) -> str:
        """Return the id of the oldest export of a workspace and mode for which a dataset is kept."""
        if tenant not in self._oldest_ids:
            ids = (
                select(col(ExportRow.id))
                .where(*in_tenant(ExportRow, tenant))
                .order_by(col(ExportRow.id).desc())
            )
            oldest = db.connection().scalar(ids.offset(limits.DATASET_EXPORTS - 1).limit(1))
            self._oldest_ids[tenant] = oldest or ""
        return max(self._oldest_ids[tenant], self._oldest_failure if is_failure else "")
