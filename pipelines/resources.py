"""Dagster resource that gives assets, checks, sensors and schedules the parts of the service. Design §2."""

import atexit
import threading
from pathlib import Path

import dagster as dg
from pydantic import PrivateAttr

from recorder.runtime import Runtime
from recorder.settings import Settings

_open: dict[str | None, Runtime] = {}
_lock = threading.Lock()


class RecorderResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Deployment that the environment names. The prefilled values fit; change none to make a dataset."""

    # A run opens it in `setup_for_execution` and closes it at its end. Sensors, which run every few seconds,
    # share one per process: opening it for each tick would cost a check of the schema and new connections.

    #: Replaces `RECORDER_DATA_DIR`.
    data_dir: str | None = None
    #: Seconds without renewal after which another run may take over an export.
    export_lease_s: float = 60
    #: Seconds before the second run of an export that did not finish; doubles with every run.
    export_pause_s: float = 15
    #: Seconds after which a small export that no process claimed gets a run of its own.
    small_export_patience_s: float = 20
    #: Exports for which one tick starts a run.
    exports_per_tick: int = 20
    #: Seconds that a run waits for the next step of a purge, such as the second pass after two minutes.
    purge_patience_s: float = 130

    _runtime: Runtime | None = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Open the deployment for a run."""
        self._runtime = _open_resource_runtime(self.data_dir)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Close what `setup_for_execution` opened."""
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None

    @property
    def runtime(self) -> Runtime:
        """Settings, database, blobs and lake of this deployment."""
        if self._runtime is not None:
            return self._runtime
        with _lock:
            if self.data_dir not in _open:
                _open[self.data_dir] = _open_resource_runtime(self.data_dir)
            return _open[self.data_dir]


def make_recorder_resource() -> dg.ResourceDefinition:
    """Return the resource of the code location: launch forms neither show nor accept members of it."""
    return RecorderResource().get_resource_definition().configured({})


def _open_resource_runtime(data_dir: str | None) -> Runtime:
    settings = Settings.from_env(data_dir=Path(data_dir) if data_dir else None, create=False)
    return Runtime.open(settings, create=False)


def close_shared_runtimes() -> None:
    """Close the deployments that this process shares; the next use opens them again."""
    with _lock:
        while _open:
            _open.popitem()[1].close()


atexit.register(close_shared_runtimes)
