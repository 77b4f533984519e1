"""Check of a lake table's data files: those that its log names and its store lacks or holds in part.

A scan that only counts rows takes the counts from the log and opens no file, so that it does not notice them.
"""

from dataclasses import dataclass

from recorder.storage.lake_cleanup import list_data_files
from recorder.storage.lake_tables import LakeTable, convert_lake_table_errors


@dataclass(frozen=True)
class TableFiles:
    """Data files of a table's newest version, and the rows in them, by the log."""

    count: int = 0
    rows: int = 0
    #: Paths of files that the store lacks, or that have another size than in the log.
    damaged: tuple[str, ...] = ()


def check_data_files(stored: LakeTable) -> TableFiles:
    """Compare the data files of a table's log with a listing of its store; no file is opened.

    Raises:
        Unavailable: if the store does not answer, or the log is damaged.
    """
    with convert_lake_table_errors():
        table = stored.open()
        if table is None:
            return TableFiles()
        files = stored.list_files(table)
        sizes = {info.path: info.size for info in list_data_files(stored.open_file_system(table), "")}
        damaged = {file.path for file in files if sizes.get(file.path) != file.size_bytes}
        newest = stored.open() if damaged else None
        if newest is not None:
            # Maintenance deletes files that commits replaced since the table was opened.
            damaged &= {file.path for file in stored.list_files(newest)}
    return TableFiles(len(files), sum(file.rows for file in files), tuple(sorted(damaged)))
