"""Removal of recorded content from the events and check results that Dagster stores. Contract §7.

Numbers stay, and names, ids and hashes that the service gave.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg
import sqlalchemy
from dagster._core.events import AssetObservationData, StepMaterializationData
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._serdes import deserialize_value, serialize_value

_CHUNK = 50
#: Events of a run that stay; all others may hold texts.
_KEPT_EVENTS = frozenset(
    {
        dg.DagsterEventType.RUN_ENQUEUED,
        dg.DagsterEventType.RUN_DEQUEUED,
        dg.DagsterEventType.RUN_STARTING,
        dg.DagsterEventType.RUN_START,
        dg.DagsterEventType.RUN_SUCCESS,
        dg.DagsterEventType.STEP_START,
        dg.DagsterEventType.STEP_SUCCESS,
        dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED,
        dg.DagsterEventType.ASSET_MATERIALIZATION,
        dg.DagsterEventType.ASSET_OBSERVATION,
        dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED,
        dg.DagsterEventType.ASSET_CHECK_EVALUATION,
    }
)
_NUMBERS = (
    dg.IntMetadataValue,
    dg.FloatMetadataValue,
    dg.BoolMetadataValue,
    dg.TimestampMetadataValue,
    dg.TableSchemaMetadataValue,
)
#: Metadata of our assets with names, ids and hashes that the service gave, never recorded content.
_KEPT_NAMES = frozenset(
    {
        "audit_heads",
        "by_table",
        "by_workspace",
        "counted",
        "export_id",
        "files",
        "format",
        "how_to_load",
        "manifest_sha256",
        "row_set_sha256",
        "size",
        "workflow",
        "workflows",
    }
)
_NOTE = "Texts and pictures: the run is older than 30 days, or than the last erasure or hard delete."


def strip_event_texts(connection: sqlalchemy.Connection, run_id: str) -> None:
    """Remove the texts of a run's events; events that hold nothing else are deleted."""
    table = SqlEventLogStorageTable
    last_id = -1
    while True:
        statement = sqlalchemy.select(table.c.id, table.c.event)
        statement = statement.where(table.c.run_id == run_id, table.c.id > last_id).order_by(table.c.id)
        rows = connection.execute(statement.limit(_CHUNK)).all()
        for row_id, text in rows:
            stripped = _strip_stored_event(text)
            if stripped is None:
                connection.execute(table.delete().where(table.c.id == row_id))
            elif stripped != text:
                connection.execute(table.update().where(table.c.id == row_id).values(event=stripped))
            last_id = row_id
        if len(rows) < _CHUNK:
            return


def strip_check_texts(connection: sqlalchemy.Connection, run_id: str) -> None:
    """Remove the texts of the results of checks of a run."""
    table = AssetCheckExecutionsTable
    statement = sqlalchemy.select(table.c.id, table.c.evaluation_event).where(table.c.run_id == run_id)
    for row_id, text in connection.execute(statement).all():
        stripped = None if text is None else _strip_stored_event(text)
        connection.execute(table.update().where(table.c.id == row_id).values(evaluation_event=stripped))


def _strip_stored_event(text: str) -> str | None:
    """Return a stored event without texts; None if nothing of it stays, or if it cannot be read."""
    try:
        stored = deserialize_value(text, dg.EventLogEntry)
    except Exception:  # damaged records raise errors of many kinds, such as TypeError and KeyError
        return None
    try:
        entry = strip_dagster_event(stored)
    except ValueError:  # a type of events that this release of Dagster does not have
        return None
    return None if entry is None else serialize_value(entry)


def strip_dagster_event(entry: dg.EventLogEntry) -> dg.EventLogEntry | None:
    """Return an event without texts; None if nothing of it stays."""
    event = entry.dagster_event
    if event is None or event.event_type not in _KEPT_EVENTS:
        return None
    data = _strip_event_data(event.event_specific_data)
    if data is event.event_specific_data:
        return entry
    # The message repeats the description.
    return entry._replace(
        user_message="", dagster_event=event._replace(event_specific_data=data, message=None)
    )


def _strip_event_data(data: Any) -> Any:
    """Return the part of an event that assets and checks give, without texts."""
    if isinstance(data, StepMaterializationData):
        shown = data.materialization
        return data._replace(materialization=shown.with_metadata(_strip_metadata(shown.metadata)))
    if isinstance(data, AssetObservationData):
        seen = data.asset_observation
        return AssetObservationData(seen.with_metadata(_strip_metadata(seen.metadata)))
    if isinstance(data, dg.AssetCheckEvaluation):
        return dg.AssetCheckEvaluation(
            asset_key=data.asset_key,
            check_name=data.check_name,
            passed=data.passed,
            metadata=_strip_metadata(data.metadata),
            target_materialization_data=data.target_materialization_data,
            severity=data.severity,
            blocking=data.blocking,
            partition=data.partition,
        )
    return data


def _strip_metadata(metadata: Mapping[str, dg.MetadataValue]) -> dict[str, dg.MetadataValue]:
    """Return the metadata of an event without long values: numbers and a few named values are kept."""
    remaining = {
        name: value for name, value in metadata.items() if isinstance(value, _NUMBERS) or name in _KEPT_NAMES
    }
    if len(remaining) < len(metadata):
        remaining["removed"] = dg.MetadataValue.text(_NOTE)
    return remaining
