"""Reading the pictures of frames, a few at a time: neighbours in one object come in one read."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from recorder.storage.blobs import Blobs

#: Bytes between two wanted pictures that are read along rather than asked for apart.
_GAP_BYTES = 64 * 1024
FILE_ENDINGS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp"}


class Place(NamedTuple):
    """Where the bytes of one picture lie."""

    object: str
    offset: int
    length: int


def read_images(blobs: Blobs, places: list[Place]) -> list[memoryview | None]:
    """The pictures at these places, in the same order, not copied; None where the object is gone."""
    found: dict[Place, memoryview | None] = {}
    for run in _runs(sorted(set(places))):
        found.update(_read_run(blobs, run))
    return [found[place] for place in places]


def _runs(places: Iterable[Place]) -> Iterator[list[Place]]:
    """Places of one object that lie close enough to be read at once."""
    for _, members in groupby(places, key=lambda place: place.object):
        run: list[Place] = []
        for place in members:
            if run and place.offset - (run[-1].offset + run[-1].length) > _GAP_BYTES:
                yield run
                run = []
            run.append(place)
        yield run


def _read_run(blobs: Blobs, run: list[Place]) -> dict[Place, memoryview | None]:
    start = run[0].offset
    end = max(place.offset + place.length for place in run)
    try:
        data = memoryview(blobs.get(run[0].object, start, end - start))
    except KeyError:
        return dict.fromkeys(run)
    return {place: data[place.offset - start : place.offset - start + place.length] for place in run}
