"""Partitions of the `datasets` asset: one for each dataset, from its first export to its last one.

A partition is registered with an export, and removed daily once no export of its dataset is kept
(`recorder/exports/results/kept_datasets.py`). The next export of the dataset registers it again.
"""

import time
from collections.abc import Collection

import dagster as dg

from recorder.exports.results.kept_datasets import KeptDatasets
from recorder.storage.database import Database

PARTITIONS = dg.DynamicPartitionsDefinition(name="datasets")
#: Partitions that are read and checked at a time.
CHUNK = 500


def register_dataset_partition(instance: dg.DagsterInstance, name: str) -> None:
    """Register the partition of a dataset, unless it is registered."""
    instance.add_dynamic_partitions(str(PARTITIONS.name), [name])


def request_dataset_partitions(
    instance: dg.DagsterInstance, names: Collection[str]
) -> list[dg.AddDynamicPartitionsRequest]:
    """Return the request that registers the datasets among these that are no partition yet.

    Only these are looked up: a deployment may have more partitions than a tick has time to read.
    """
    if not names:
        return []
    known = instance.get_existing_dynamic_partitions(str(PARTITIONS.name), sorted(set(names)))
    new = sorted(set(names) - known)
    return [PARTITIONS.build_add_request(new)] if new else []


def remove_ended_dataset_partitions(
    instance: dg.DagsterInstance, database: Database, *, longest_s: float
) -> int:
    """Remove the partitions of datasets without a kept export; return how many.

    Args:
        instance: Dagster instance of the deployment.
        database: the service's database.
        longest_s: no further chunk is checked after these seconds; the next call checks all again.
    """
    name, deadline = str(PARTITIONS.name), time.monotonic() + longest_s
    datasets, removed, cursor = KeptDatasets(), 0, None
    while time.monotonic() <= deadline:
        page = instance.get_paginated_dynamic_partitions(name, limit=CHUNK, ascending=True, cursor=cursor)
        with database.transaction(write=False) as db:
            kept = datasets.select_kept(db, page.results)
        ended = [key for key in page.results if key not in kept]
        for key in ended:
            instance.delete_dynamic_partition(name, key)
        if ended:
            # An export that was made since the check may have registered its partition before the deletion.
            with database.transaction(write=False) as db:
                renewed = datasets.select_kept(db, ended)
            instance.add_dynamic_partitions(name, sorted(renewed))
            removed += len(ended) - len(renewed)
        if not page.has_more:
            break
        cursor = page.cursor
    return removed
