"""Names inside an export's directory, and what its files are called. Contract §5.

Pure: readers need them where the service's libraries are not installed.
"""

from typing import Literal

#: The formats, of which `models.export_request` has the same for requests, and the kinds of files.
FormatName = Literal["parquet", "webdataset", "jsonl", "arrow"]
FileKind = Literal["events", "frames", "samples"]

#: The parts of a dataset, as column `split` names them.
SPLITS = ("train", "validation", "test")
#: Written last: its presence says that the dataset is whole.
MANIFEST = "manifest.json"
#: The dataset card.
CARD = "README.md"


def count_files(number: int) -> str:
    """Return a number of files in words: "1 file", "2 files"."""
    return f"{number:,} file{'' if number == 1 else 's'}"
