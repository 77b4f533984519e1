"""A process that seals as a drain run does until its standard input ends: FOLDER, URL, OWNER, LEASE_S, RUNS.

It writes `ready` once it waits for work.
"""

import sys
import threading
from dataclasses import replace
from pathlib import Path

from pipelines.sealing_drain import SealingDrainLoop
from recorder.runtime import Runtime
from recorder.sealing import open_sealer
from recorder.settings import Settings


def main(folder: str, database_url: str, owner: str, lease_s: str, runs: str) -> None:
    """Seal until standard input ends."""
    settings = Settings.from_env(data_dir=Path(folder))
    settings = replace(
        settings,
        database_url=database_url,
        seal_runs=int(runs),
        seal_lease_seconds=float(lease_s),
        seal_processes=1,
    )
    runtime = Runtime.open(settings)
    ended = threading.Event()
    drain: SealingDrainLoop | None = None

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()
        if drain is not None:
            drain.stop()

    threading.Thread(target=wait_for_end, daemon=True).start()
    try:
        while not ended.is_set():
            with open_sealer(runtime, owner) as sealer:
                if sealer is None:
                    ended.wait(0.05)
                    continue
                drain = SealingDrainLoop(sealer, idle_seconds=3600, max_seconds=3600)
                if ended.is_set():  # before there was a drain to stop
                    drain.stop()
                print("ready", flush=True)
                for _ in drain.seal_and_report():
                    if ended.is_set():
                        drain.stop()
    finally:
        runtime.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
