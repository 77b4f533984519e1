"""Files in a dataset's folder that its manifest does not list, but that the globs of its card match."""

import re
from collections.abc import Iterable

from recorder.datasets.formats import FORMATS, FormatName
from recorder.datasets.manifest import Shard
from recorder.datasets.sources import DatasetSource


def find_unlisted_files(source: DatasetSource, format: FormatName, shards: Iterable[Shard]) -> list[str]:
    """Return the paths of the files that tools read with the dataset, although no shard has that path.

    Args:
        source: source of the dataset; those that list no files have no unlisted ones.
        format: format of the dataset.
        shards: files of the dataset.
    """
    chosen = FORMATS[format]
    # `exports.card.file_glob` as an expression: a star of a glob matches no hidden folder.
    matched = re.compile(rf"data/[^./][^/]*/({'|'.join(chosen.kinds)})-[^/]*\.{chosen.ending}", re.DOTALL)
    listed = {shard.path for shard in shards}
    return sorted(path for path in source.list_data_paths() if path not in listed and matched.fullmatch(path))
