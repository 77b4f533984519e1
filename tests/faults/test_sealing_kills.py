"""kill -9 of racing sealing runs at any moment: every session is sealed once, none is set aside.

`RECORDER_FAULT_SEAL_KILLS` says how many runs are killed; `make test-faults` kills a few. The moments follow
`RECORDER_FAULT_SEED`, which a failure names.
"""

import os
import random
import threading
import time
from pathlib import Path

from recorder.runtime import Runtime
from recorder.sealing.set_aside import list_sessions_set_aside
from tests.faults.results import add_result, count_done
from tests.faults.sealing_runs import SealingRun
from tests.support.factories import picture
from tests.support.recorded_sessions import assert_sealed_exactly_once, open_desk, png_item, session_row
from tests.support.sealed_sessions import make_runtime

KILLS = int(os.environ.get("RECORDER_FAULT_SEAL_KILLS", "3"))  # noqa: TID251
SEED = int(os.environ.get("RECORDER_FAULT_SEED", "1"))  # noqa: TID251
RUNS = 4
WORKSPACES = ["wsp_01k0000000000000000000000a", "wsp_01k0000000000000000000000b"]
_WORKFLOWS = ["checkout", "ship", "refund"]
_PATIENCE_S = 180.0


class Recording:
    """Records sessions of several lanes for as long as the block runs."""

    def __init__(self, runtime: Runtime) -> None:
        self.session_ids: list[str] = []
        self._runtime = runtime
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._record)

    def __enter__(self) -> "Recording":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _record(self) -> None:
        rng = random.Random(SEED)
        while not self._ended.wait(0.1):
            with open_desk(self._runtime, workspace_id=rng.choice(WORKSPACES)) as desk:
                frames = [png_item(1, picture(rng.randrange(50)))] if rng.random() < 0.3 else []
                self.session_ids.append(desk.record(workflow=rng.choice(_WORKFLOWS), frames=frames))


def test_racing_runs_that_are_killed_seal_every_session_once(database_url: str, tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path, database_url=database_url)
    name = f"sealing kills on {'SQLite' if runtime.database.is_sqlite else 'PostgreSQL'}"
    done = count_done(name)
    rng = random.Random(SEED + done)
    runs = [SealingRun(tmp_path, database_url, number, lease_s=2) for number in range(RUNS)]
    for run in runs:
        run.start()
    with Recording(runtime) as recording:
        for _ in range(max(KILLS - done, 0)):
            time.sleep(rng.uniform(0.2, 2.5))
            run = rng.choice(runs)
            run.kill()
            run.start()
    try:
        until = time.monotonic() + _PATIENCE_S
        waiting = list(recording.session_ids)
        while waiting and time.monotonic() < until:
            time.sleep(0.5)
            waiting = [key for key in waiting if session_row(runtime, key).status != "sealed"]
    finally:
        for run in runs:
            run.stop()
    with runtime.database.transaction(write=False) as db:
        set_aside = [
            (session.session_id, session.code, session.message) for session in list_sessions_set_aside(db)
        ]
    assert set_aside == [], f"RECORDER_FAULT_SEED={SEED}"
    assert waiting == [], f"RECORDER_FAULT_SEED={SEED}"
    assert_sealed_exactly_once(runtime, recording.session_ids)
    runtime.close()
    add_result(name, max(KILLS - done, 0), seed=SEED, sessions=len(recording.session_ids))
