"""The files of one kind, opened one after the other as their rows are wanted."""

from collections.abc import Iterator
from dataclasses import dataclass

from recorder.digest import sha256_of
from recorder.loading.cache import Cache
from recorder.loading.manifest import Shard
from recorder.loading.rows import Row, count_rows, read_rows
from recorder.loading.sources import Source


@dataclass(frozen=True)
class Files:
    """What reading rows needs; it can be sent to another process."""

    source: Source
    cache: Cache
    kind: str
    shards: list[Shard]
    split: str | None
    #: How many rows each file has; of the split, if there is one.
    rows: list[int]

    @classmethod
    def of(cls, source: Source, cache: Cache, kind: str, shards: list[Shard], split: str | None) -> "Files":
        """The files with their numbers of rows; for a split they are fetched and counted."""
        if split is None:
            return cls(source, cache, kind, shards, None, [shard.rows for shard in shards])
        rows = [count_rows(source.fetch(shard, cache), kind, split) for shard in shards]
        return cls(source, cache, kind, shards, split, rows)

    @property
    def identity(self) -> str:
        """What fixes the sequence of rows: the files, and what is taken of them."""
        return sha256_of([self.kind, self.split, [[shard.path, shard.sha256] for shard in self.shards]])

    def read(self, file: int, start: int, columns: list[str] | None) -> Iterator[Row]:
        """The rows of a file from the `start`-th on."""
        path = self.source.fetch(self.shards[file], self.cache)
        yield from read_rows(path, self.kind, start=start, columns=columns, split=self.split)
