"""Names inside an export's directory, and what its files are called. Contract §5.

Pure: readers need them where the service's libraries are not installed.
"""

from typing import Literal

#: The formats and the kinds of files; `models.export` has the same for requests.
FormatName = Literal["parquet", "webdataset", "jsonl", "arrow"]
FileKind = Literal["events", "frames", "samples"]

#: Written last: its presence says that the dataset is whole.
MANIFEST = "manifest.json"
#: The dataset card.
CARD = "README.md"
