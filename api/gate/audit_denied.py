"""What a key tried and may not, told to the audit log. Contract §7 (audit)."""

import logging
import time

import anyio.to_thread
from starlette.types import Scope

from api.gate.endpoints import Endpoint
from api.gate.responses import client_address
from recorder.access.keys import Caller
from recorder.audit.log import Origin, record
from recorder.errors import InsufficientScope, Unavailable
from recorder.runtime import Runtime

log = logging.getLogger("recorder.api")

#: A key that keeps trying is told of once in this long: it must not fill the log.
_SECONDS = 60.0
_SIZE = 10_000


class Refusals:
    """The refusals of one process; used from its event loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._told: dict[tuple[str, Endpoint], float] = {}

    async def tell(self, scope: Scope, error: InsufficientScope) -> None:
        """Record that the caller of a request lacks the scope for it; the answer is the same without."""
        caller, endpoint = scope["state"]["caller"], scope["state"]["endpoint"]
        if caller is None or endpoint is None or not self._is_new(caller.key_id, endpoint):
            return
        request_id, address = scope["state"]["request_id"], client_address(scope)
        origin = Origin(caller.workspace_id, "key", caller.key_id, request_id, address, caller.mode)
        try:
            await anyio.to_thread.run_sync(self._record, origin, caller, endpoint, error.needed)
        except Unavailable:
            log.error("a refusal was not recorded: the database does not answer")

    def _is_new(self, key_id: str, endpoint: Endpoint) -> bool:
        now = time.monotonic()
        if now - self._told.get((key_id, endpoint), -_SECONDS) < _SECONDS:
            return False
        if len(self._told) >= _SIZE:
            self._told.clear()
        self._told[key_id, endpoint] = now
        return True

    def _record(self, origin: Origin, caller: Caller, endpoint: Endpoint, needed: str) -> None:
        with self._runtime.database.transaction(write=True) as db:
            record(
                db,
                origin,
                "endpoint.call",
                resource_type="endpoint",
                resource_id=f"{endpoint.method} {endpoint.path}",
                outcome="refused",
                details={"needed": needed, "held": str(caller.scope)},
            )
