"""Files that ask their reader for more memory or time than they may have: the check names them."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recorder.exports.verify import verify_manifest
from recorder.exports.verify.reading_process import ReadingProcess
from tests.support.dataset_readers import FORMATS
from tests.support.spoiled_datasets import exchange_file, file_of_rows

_MIB = 2**20


@pytest.mark.parametrize("format", FORMATS)
def test_a_reading_process_finds_what_the_check_itself_finds(
    copy: Callable[[str], Path], format: str
) -> None:
    folder = copy(format)
    with ReadingProcess() as process:
        assert verify_manifest(folder, read_file=process.read) == verify_manifest(folder)
        path = file_of_rows(folder)
        exchange_file(folder, path, path.read_bytes()[: path.stat().st_size // 2])
        report = verify_manifest(folder, read_file=process.read)
    assert report == verify_manifest(folder) and not report.is_valid


def test_a_page_that_takes_more_memory_than_a_file_may_have_is_named(copy: Callable[[str], Path]) -> None:
    # A file of some kilobytes, whose hashes match, decodes to half a gigabyte.
    folder = copy("parquet")
    path = file_of_rows(folder)
    row = pq.read_table(path).slice(0, 1)
    index = row.schema.get_field_index("payload")
    payload = pa.array(["x" * 512 * _MIB], row.schema.field("payload").type)
    pq.write_table(
        row.set_column(index, row.schema.field("payload"), payload),
        path,
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
    )
    del payload
    assert path.stat().st_size < _MIB
    exchange_file(folder, path, path.read_bytes())
    with ReadingProcess(memory_bytes=256 * _MIB) as process:
        report = verify_manifest(folder, read_file=process.read)
    name = str(path.relative_to(folder))
    (problem,) = (problem for problem in report.problems if problem.startswith(name))
    assert "memory" in problem.lower(), problem
    # The other files were read.
    assert report.frames > 0 and not any("frames-" in problem for problem in report.problems)


def test_a_file_that_takes_too_long_is_named(copy: Callable[[str], Path]) -> None:
    folder = copy("jsonl")
    with ReadingProcess(seconds=0.01) as process:
        report = verify_manifest(folder, read_file=process.read)
    assert "takes more than 0.01 seconds to read" in " ".join(report.problems)
