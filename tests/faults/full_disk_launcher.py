"""A deployment with one of its parts on a disk that fills up, and gets room again.

`python -m tests.faults.full_disk_launcher FOLDER PART DISK` keeps a part on the small disk: `database`,
`blobs`, `lake`, or `all` of them. It prints one JSON object with what it saw; see `FullDisk`.
"""

import base64
import io
import json
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image
from sqlmodel import func, select

from recorder.errors import Unavailable
from recorder.models.event import EventBatchRow
from recorder.models.frame import FrameRow
from tests.support.databases import create_file
from tests.support.factories import Caller, Service, event, frame, running_app
from tests.support.recorded_sessions import session_row
from tests.support.sealing import seal_all
from tests.support.waiting import wait_for

EVENTS = 50
_EVENT_BYTES = 4_000
_PICTURE_SIZE = (200, 150)
#: A request is refused after so many at the latest: files grow in steps, and logs have room for some.
_MOST_REQUESTS = 100


@dataclass
class FullDisk:
    """Answers and stored items of a deployment on a full disk, and once it has room again."""

    #: Status and code of the first refused request of each kind.
    refused: dict[str, list[Any]] = field(default_factory=dict)
    #: Whether the rows were the same before and after a refused request, and how many files it left in the
    #: store of objects.
    is_unchanged: dict[str, bool] = field(default_factory=dict)
    files_left: dict[str, int] = field(default_factory=dict)
    #: Requests of each kind that were acknowledged, on the full disk and with room.
    accepted: dict[str, int] = field(default_factory=dict)
    #: Status of the waiting session while the disk is full, and what was noted against it.
    waiting: list[Any] = field(default_factory=list)
    #: Status of both sessions at the end, the number of items that are read back, and of those acknowledged.
    sealed: list[str] = field(default_factory=list)
    stored: dict[str, int] = field(default_factory=dict)


class SmallDisk:
    """A disk with a file that takes what room it has."""

    def __init__(self, folder: Path) -> None:
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Write until nothing fits."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (65_536, 4_096, 1):
                with suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass

    def free(self) -> None:
        """Give the room back."""
        self._filler.unlink()


def run(folder: Path, part: str, disk: SmallDisk, urls: dict[str, str]) -> FullDisk:
    """Record and seal on the disk while it is full, and once it has room again."""
    seen = FullDisk()
    with running_app(folder, **urls) as service:
        caller = service.make_caller()
        waiting, recording = caller.make_session(), caller.make_session()
        for add in (add_events, add_frame):
            assert add(caller, waiting, "first").status_code == 202
        assert caller.post(f"/v1/sessions/{waiting}/stop").status_code == 200
        disk.fill()
        for kind, add in (("events", add_events), ("frames", add_frame)):
            seen.accepted[kind] = 0
            if part in ("all", "database") or (part, kind) == ("blobs", "frames"):
                refuse(service, kind, lambda key, add=add: add(caller, recording, key), seen, disk)
        with suppress(Unavailable):
            seal_all(service.runtime)
        row = session_row(service.runtime, waiting)
        seen.waiting = [row.status, row.seal_failures, row.seal_error_code]
        disk.free()
        for kind, add in (("events", add_events), ("frames", add_frame)):
            # The refused request again, with its key.
            answer = add(caller, recording, f"{kind}{seen.accepted[kind]}")
            assert answer.status_code == 202, answer.text
            seen.accepted[kind] += 1
        assert caller.post(f"/v1/sessions/{recording}/stop").status_code == 200
        for session_id in (waiting, recording):
            wait_for(lambda session_id=session_id: seal_again(service, session_id))
            seen.sealed.append(session_row(service.runtime, session_id).status)
        seen.stored = {kind: len(read_all(caller, recording, kind)) for kind in ("events", "frames")}
    return seen


def refuse(service: Service, kind: str, add: Callable[[str], Any], seen: FullDisk, disk: SmallDisk) -> None:
    """Send requests of a kind until the full disk refuses one; note how, and what it left."""
    for number in range(_MOST_REQUESTS):
        rows, files = count_rows(service), list_objects(service)
        answer = add(f"{kind}{number}")
        if answer.status_code != 202:
            seen.refused[kind] = [answer.status_code, answer.json()["code"]]
            seen.is_unchanged[kind] = count_rows(service) == rows
            seen.files_left[kind] = len(list_objects(service) - files)
            return
        seen.accepted[kind] += 1
        disk.fill()
    raise AssertionError(f"{_MOST_REQUESTS} requests of {kind} were stored on a full disk")


def count_rows(service: Service) -> list[int]:
    """Return the numbers of rows of batches and frames."""
    with service.runtime.database.transaction(write=False) as db:
        return [db.exec(select(func.count()).select_from(row)).one() for row in (EventBatchRow, FrameRow)]


def list_objects(service: Service) -> set[str]:
    """Return the files of the store of objects, temporary ones among them."""
    paths = Path(service.runtime.settings.blob_url).rglob("*")
    return {str(path) for path in paths if path.is_file()}


def add_events(caller: Caller, session_id: str, key: str) -> Any:
    """Send a batch that no compression makes small."""
    texts = random.Random(key)
    items = [
        event(number, "note", id=f"evt_{key}x{number}", data={"note": make_text(texts)})
        for number in range(EVENTS)
    ]
    return caller.add_events(session_id, *items, key=key)


def add_frame(caller: Caller, session_id: str, key: str) -> Any:
    """Send a picture that no compression makes small."""
    noise = random.Random(key).randbytes(3 * _PICTURE_SIZE[0] * _PICTURE_SIZE[1])
    data = base64.b64encode(make_picture(noise)).decode()
    item = frame(len(key), id=f"frm_{key}") | {"data": data}
    return caller.add_frames(session_id, item, key=key)


def make_text(texts: random.Random) -> str:
    """Return letters without a pattern."""
    return base64.b64encode(texts.randbytes(_EVENT_BYTES * 3 // 4)).decode()


def seal_again(service: Service, session_id: str) -> bool:
    """Seal what waits; return whether a session is sealed. A lane that failed waits for some seconds."""
    with suppress(Unavailable):
        seal_all(service.runtime)
    return session_row(service.runtime, session_id).status == "sealed"


def read_all(caller: Caller, session_id: str, kind: str) -> list[Any]:
    """Return all events or frames of a session."""
    items: list[Any] = []
    cursor = ""
    while True:
        answer = caller.get(f"/v1/sessions/{session_id}/{kind}?limit=100{cursor}").json()
        items += answer["data"]
        if not answer["has_more"]:
            return items
        cursor = f"&cursor={answer['next_cursor']}"


def make_picture(noise: bytes) -> bytes:
    """Return a PNG of random pixels."""
    file = io.BytesIO()
    Image.frombytes("RGB", _PICTURE_SIZE, noise).save(file, "PNG")
    return file.getvalue()


def choose_urls(part: str, disk: Path) -> dict[str, str]:
    """Return the settings that keep a part on a disk, with the database in place."""
    match part:
        case "database":
            return {"database_url": create_file(disk)}
        case "blobs" | "lake":
            return {f"{part.removesuffix('s')}_url": str(disk / part)}
    return {}


if __name__ == "__main__":
    folder, part, small = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    here = small / "deployment" if part == "all" else folder
    print(json.dumps(asdict(run(here, part, SmallDisk(small), choose_urls(part, small)))))
