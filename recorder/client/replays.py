"""Client methods for replays and recoveries. Spec §4.6."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from recorder.client.errors import TookTooLong
from recorder.client.transport import Json, Requests, poll_request_until_status

_ENDED = ("completed", "diverged", "failed")


class Replays(Requests):
    """Methods for replays of sealed sessions, and for recoveries of failed ones."""

    def create_replay(self, session_id: str, *, sandbox: str = "dry", **members: Any) -> Json:
        """Create a replay of a sealed session.

        Args:
            session_id: the session.
            sandbox: `dry` or `live`.
            members: mode, anchor, until, against, inputs and policy of `POST /v1/replays`.
        """
        return self._create("/v1/replays", {"session_id": session_id, "sandbox": sandbox, **members})

    def get_replay(self, replay_id: str) -> Json:
        """Return the current state of a replay."""
        return self._get(_make_replay_url_path(replay_id))

    def list_replays(self, **filters: str) -> Iterator[Json]:
        """Yield replays, newest first; filters: workflow, status, sandbox, session_id, cause."""
        return self._iterate_pages("/v1/replays", filters)

    def replay_steps(self, replay_id: str) -> Iterator[Json]:
        """Yield the steps of a replay, in their order."""
        return self._iterate_pages(f"{_make_replay_url_path(replay_id)}/steps")

    def cancel_replay(self, replay_id: str) -> Json:
        """Cancel a replay; it ends as `failed`, with the error type `cancelled`."""
        return self._post(f"{_make_replay_url_path(replay_id)}/cancel", {})

    def decide_replay(self, replay_id: str, step: int, action: str, *, selector: str | None = None) -> Json:
        """Decide on the step that a guided replay awaits: `act`, `skip`, `retarget` or `abort`."""
        body: Json = {"step": step, "action": action}
        if selector is not None:
            body["selector"] = selector
        return self._create(f"{_make_replay_url_path(replay_id)}/decision", body)

    def wait_replay(
        self,
        replay_id: str,
        *,
        timeout_s: float = 600.0,
        on_progress: Callable[[Json], None] | None = None,
    ) -> Json:
        """Wait until a replay has ended or awaits a decision, and return it.

        Args:
            replay_id: the replay.
            timeout_s: most seconds to wait.
            on_progress: called with the replay each time it was read.

        Raises:
            TookTooLong: if it does neither within `timeout_s` seconds.
        """

        def read() -> Json:
            replay = self.get_replay(replay_id)
            if on_progress is not None:
                on_progress(replay)
            return {
                "status": replay["status"] if replay["awaiting"] is None else "awaiting",
                "replay": replay,
            }

        answer = poll_request_until_status(read, (*_ENDED, "awaiting"), time.monotonic() + timeout_s)
        if answer is None:
            raise TookTooLong(f"{replay_id} is not done", timeout_s)
        replay: Json = answer["replay"]
        return replay

    def create_recovery(
        self,
        session_id: str,
        *,
        sandbox: str = "dry",
        failure_tag: str | None = None,
        recovery_point: Mapping[str, str] | None = None,
        inputs: Mapping[str, str] | None = None,
        policy: Mapping[str, Any] | None = None,
    ) -> Json:
        """Create a recovery of a failed session.

        Args:
            session_id: the session.
            sandbox: `dry`, or `live` to repeat the first match in a browser.
            failure_tag: name of the tag that marks the failure; by default any error tag.
            recovery_point: `session_id` with `event_id` or `frame_id`; by default the best candidates.
            inputs: values that a live attempt types, by `input.secret_ref` or the event's id.
            policy: policy of every attempt, as that of a replay.
        """
        chosen = {
            "failure_tag": failure_tag,
            "recovery_point": recovery_point,
            "inputs": inputs,
            "policy": policy,
        }
        body = {"session_id": session_id, "sandbox": sandbox}
        given = {name: value for name, value in chosen.items() if value is not None}
        return self._create("/v1/recoveries", {**body, **given})

    def get_recovery(self, recovery_id: str) -> Json:
        """Return the current state of a recovery."""
        return self._get(_make_recovery_url_path(recovery_id))

    def list_recoveries(self, **filters: str) -> Iterator[Json]:
        """Yield recoveries, newest first; filters: workflow, status, sandbox, session_id."""
        return self._iterate_pages("/v1/recoveries", filters)

    def cancel_recovery(self, recovery_id: str) -> Json:
        """Cancel a recovery and its attempt; it ends as `failed`, for the reason `cancelled`."""
        return self._post(f"{_make_recovery_url_path(recovery_id)}/cancel", {})

    def wait_recovery(
        self,
        recovery_id: str,
        *,
        timeout_s: float = 600.0,
        on_awaiting: Callable[[Json], None] | None = None,
        on_progress: Callable[[Json], None] | None = None,
    ) -> Json:
        """Wait until a recovery has ended, and return it.

        Args:
            recovery_id: the recovery.
            timeout_s: most seconds to wait.
            on_awaiting: called with an attempt while it awaits a decision, as live ones do.
            on_progress: called with the recovery each time it was read.

        Raises:
            TookTooLong: if it has not ended within `timeout_s` seconds.
        """

        def read() -> Json:
            recovery = self.get_recovery(recovery_id)
            if on_progress is not None:
                on_progress(recovery)
            if on_awaiting is not None and recovery["status"] == "started" and recovery["replay_ids"]:
                attempt = self.get_replay(recovery["replay_ids"][-1])
                if attempt["awaiting"] is not None:
                    on_awaiting(attempt)
            return recovery

        recovery = poll_request_until_status(read, ("succeeded", "failed"), time.monotonic() + timeout_s)
        if recovery is None:
            raise TookTooLong(f"{recovery_id} is not done", timeout_s)
        return recovery


def _make_replay_url_path(replay_id: str) -> str:
    return f"/v1/replays/{quote(replay_id, safe='')}"


def _make_recovery_url_path(recovery_id: str) -> str:
    return f"/v1/recoveries/{quote(recovery_id, safe='')}"
