"""Slots of the runs that write one export each: their number, who uses them, and the exports to start next.

While several workspaces wait, each has at most half of the slots. A run beyond this share is requested only
for a slot that is free, or by a workspace without others; Dagster's queue starts the other runs before it.

Runs from Dagster's pages have a share of their own, as if they were of one more workspace: a backfill of
many datasets keeps no workspace waiting. The slots are those of a pool of Dagster, since runs that are
launched on the page of the asset have the tags of no job.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from pipelines.dagster_runs import fail_lost_dagster_run, list_unfinished_dagster_runs
from pipelines.dataset_checks import EXPORT_TAG
from recorder.exports.runner.export_lease import read_export_states
from recorder.fair_scheduling import compute_workspace_share
from recorder.models.export import ExportRow
from recorder.storage.database import Database

#: Pool of the asset `datasets`. Its limit is the number of slots: that of `dagster_home/dagster.yaml`, unless
#: one was set in Dagster's pages.
EXPORT_POOL = "datasets"
#: Dagster's queue sorts by this tag; a run without it has 0.
PRIORITY_TAG = "dagster/priority"
SPARE_PRIORITY = "-1"
_BEGAN = (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED)
#: Where the pool has no limit; `dagster_home/dagster.yaml` has the same.
_SLOTS = 2
#: Most runs of a backfill whose priority a tick changes, the next ones of the queue first.
_DEFERRED_AT_ONCE = 100


@dataclass
class ExportSlots:
    """Slots of the pool of these runs, and the runs that use one or wait for one."""

    slots: int
    #: Unfinished runs by workspace; those of None are from Dagster's pages.
    runs: Counter[str | None] = field(default_factory=Counter)
    #: Those of them that are beyond the share of their workspace and wait in Dagster's queue.
    waiting_spares: Counter[str | None] = field(default_factory=Counter)

    @property
    def slots_per_workspace(self) -> int:
        """Most runs of a workspace while others wait."""
        return compute_workspace_share(self.slots)

    def count_runs_in_share(self, workspace_id: str | None) -> int:
        """Return the runs of a workspace without those beyond its share that wait."""
        return self.runs[workspace_id] - self.waiting_spares[workspace_id]

    def has_share_left(self, workspace_id: str | None) -> bool:
        """Return whether a workspace has fewer runs than its share."""
        return self.count_runs_in_share(workspace_id) < self.slots_per_workspace

    def has_spare_slot(self, workspace_id: str) -> bool:
        """Return whether a slot is free beyond the shares.

        A workspace without others may also have one run that waits, so that no slot is free between two.
        """
        is_alone = self.runs.total() == self.runs[workspace_id]
        return self.runs.total() < self.slots + is_alone

    def take(self, workspace_id: str | None, *, is_spare: bool) -> None:
        """Count one more run of a workspace."""
        self.runs[workspace_id] += 1
        self.waiting_spares[workspace_id] += is_spare


@dataclass(frozen=True)
class ChosenExport:
    """An export that gets a run now."""

    row: ExportRow
    #: Whether the run is beyond the share of its workspace.
    is_spare: bool


def choose_exports_to_start(
    slots: ExportSlots, rows: Sequence[ExportRow], *, limit: int
) -> list[ChosenExport]:
    """Return the exports that get a run now, and count their runs.

    Args:
        slots: the slots and the runs that have them.
        rows: exports that may start, workspaces in turn.
        limit: most exports to return.
    """
    chosen: dict[str, ChosenExport] = {}
    for is_spare in (False, True):
        for row in rows:
            has_slot = slots.has_spare_slot if is_spare else slots.has_share_left
            if len(chosen) < limit and row.id not in chosen and has_slot(row.workspace_id):
                slots.take(row.workspace_id, is_spare=is_spare)
                chosen[row.id] = ChosenExport(row, is_spare)
    return list(chosen.values())


def read_export_slots(instance: dg.DagsterInstance, database: Database) -> ExportSlots:
    """Read the slots and the unfinished runs; mark runs as failed whose processes are gone.

    A waiting run beyond the share gets the priority of others once its workspace has share left. Waiting runs
    from Dagster's pages beyond their share get a lower priority.
    """
    unfinished = list_unfinished_dagster_runs(instance)
    records = [record for record in unfinished if _is_in_export_pool(record.dagster_run)]
    export_ids = {record.dagster_run.tags.get(EXPORT_TAG, "") for record in records}
    with database.transaction(write=False) as db:
        states = read_export_states(db, export_ids)
    slots = ExportSlots(_count_export_slots(instance))
    spares: list[tuple[str, str | None]] = []
    page_runs: list[str] = []
    for record in records:
        run = record.dagster_run
        state = states.get(run.tags.get(EXPORT_TAG, ""))
        needs_lease = state is not None and state.needs_run
        if run.status in _BEGAN and fail_lost_dagster_run(instance, record, needs_lease=needs_lease):
            # It would keep its slot until a user ended it in Dagster's pages.
            continue
        workspace_id = None if state is None or not _names_export(run) else state.workspace_id
        is_waiting = run.status == dg.DagsterRunStatus.QUEUED
        is_spare = is_waiting and run.tags.get(PRIORITY_TAG) == SPARE_PRIORITY
        slots.take(workspace_id, is_spare=is_spare)
        if is_spare:
            spares.append((run.run_id, workspace_id))
        elif is_waiting and workspace_id is None and PRIORITY_TAG not in run.tags:
            page_runs.append(run.run_id)
    for run_id, workspace_id in reversed(spares):  # the oldest first
        if slots.has_share_left(workspace_id):
            instance.add_run_tags(run_id, {PRIORITY_TAG: "0"})
            slots.waiting_spares[workspace_id] -= 1
    _defer_page_runs(instance, slots, page_runs[::-1])
    return slots


def _is_in_export_pool(run: dg.DagsterRun) -> bool:
    """Return whether a run writes a dataset, whatever launched it."""
    pools = run.run_op_concurrency
    return pools is not None and EXPORT_POOL in (pools.all_pools or ())


def _names_export(run: dg.DagsterRun) -> bool:
    """Return whether the configuration of a run names its export, as that of a run of the sensor does."""
    operations: Any = run.run_config.get("ops", {})
    return bool(operations.get("datasets", {}).get("config", {}).get("export_id"))


def _defer_page_runs(instance: dg.DagsterInstance, slots: ExportSlots, waiting: Sequence[str]) -> None:
    """Give waiting runs from Dagster's pages beyond their share a lower priority.

    Args:
        instance: Dagster instance of the deployment.
        slots: the slots and the runs that have them.
        waiting: ids of these runs that have no priority yet, the oldest first.
    """
    beyond = max(0, slots.count_runs_in_share(None) - slots.slots_per_workspace)
    kept = max(0, len(waiting) - beyond)
    for run_id in waiting[kept : kept + _DEFERRED_AT_ONCE]:
        instance.add_run_tags(run_id, {PRIORITY_TAG: SPARE_PRIORITY})
        slots.waiting_spares[None] += 1


def store_export_pool_limit(instance: dg.DagsterInstance) -> None:
    """Store the pool's limit unless Dagster has one: its queue applies a default from its second pass on."""
    has_default = instance.get_concurrency_config().pool_config.default_pool_limit is not None
    if has_default and EXPORT_POOL not in _read_pool_limits(instance):
        instance.event_log_storage.initialize_concurrency_limit_to_default(EXPORT_POOL)


def _read_pool_limits(instance: dg.DagsterInstance) -> dict[str, int]:
    return {pool.name: pool.limit for pool in instance.event_log_storage.get_pool_limits()}


def _count_export_slots(instance: dg.DagsterInstance) -> int:
    """Return how many of these runs Dagster's queue starts side by side."""
    default = instance.get_concurrency_config().pool_config.default_pool_limit
    return _read_pool_limits(instance).get(EXPORT_POOL, _SLOTS if default is None else default)
