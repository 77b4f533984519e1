"""Instance of Dagster for sensors: opened once a process, since opening it takes 40 ms in every tick.

For the same reason sensors take no resource as a parameter: Dagster opens an instance to build resources.
"""

import threading

import dagster as dg
from dagster._core.instance.ref import InstanceRef

_lock = threading.Lock()
_opened: tuple[InstanceRef, dg.DagsterInstance] | None = None


def instance_of(context: dg.SensorEvaluationContext) -> dg.DagsterInstance:
    """Return the instance that a tick belongs to."""
    global _opened
    ref = context.instance_ref
    if ref is None:  # in a test, which has an instance of its own
        return context.instance
    with _lock:
        if _opened is None or _opened[0] != ref:
            _opened = ref, dg.DagsterInstance.from_ref(ref)
        return _opened[1]
