"""The one resource: hands the service's parts to assets, checks, sensors and schedules. Design §2."""

import atexit
import threading
from pathlib import Path

import dagster as dg

from recorder.runtime import Runtime
from recorder.settings import Settings

_open: dict[str | None, Runtime] = {}
_lock = threading.Lock()


class RecorderResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Opens the deployment that the environment names, once per process.

    A sensor ticks every few seconds and a run has many steps; opening anew each time would cost a check of
    the schema and fresh connections. The parts are given back when the process ends.
    """

    #: Overrules `RECORDER_DATA_DIR`.
    data_dir: str | None = None
    #: After so long without a sign of life an export's run may be followed by another.
    export_lease_s: float = 60
    #: How long that one waits after a first run that did not finish; later ones twice as long each.
    export_pause_s: float = 15

    #: After so long a small export gets a run of its own, if no process came to write it.
    small_export_patience_s: float = 20

    @property
    def runtime(self) -> Runtime:
        """Settings, database, blobs and lake of this deployment."""
        with _lock:
            if self.data_dir not in _open:
                folder = Path(self.data_dir) if self.data_dir else None
                _open[self.data_dir] = Runtime.open(Settings.from_env(data_dir=folder))
            return _open[self.data_dir]


def close_runtimes() -> None:
    """Give back what this process opened; the next use opens it again."""
    with _lock:
        while _open:
            _open.popitem()[1].close()


atexit.register(close_runtimes)
