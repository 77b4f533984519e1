"""An export to a folder, or a file that is put into one, in a process whose syncs are recorded.

`python -m tests.faults.power_exporter FOLDER KIND`: `local` and `signed_url` run an export; `address` puts a
file through fsspec.
"""

import sys
from pathlib import Path

from recorder.exports.destinations import open_destination_url
from recorder.exports.runner.run import run_export
from tests.support.export_runs import ask
from tests.support.sealed_sessions import Recording, make_runtime, seal

_DESTINATIONS = {"local": {"kind": "local", "path": "deep/out"}, "signed_url": {"kind": "signed_url"}}


def main(folder: Path, kind: str) -> None:
    """Export two workflows' worth of sessions, or put one file."""
    if kind == "address":
        with open_destination_url(f"local://{folder / 'exports/deep'}").create(
            "data/train/events-0.parquet"
        ) as file:
            file.write(b"rows" * 10_000)
        return
    runtime = make_runtime(folder)
    seal(runtime, [Recording(padding=2_000) for _ in range(30)])
    row = ask(runtime, destination=_DESTINATIONS[kind])
    # The lease is not renewed in between: every sync of the database is one of the ledger's.
    row = run_export(runtime, row.id, owner="test", lease_ms=300_000)
    assert row.status == "completed", row.error
    runtime.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
