"""Replies of processes that replay or plan within limits: a result, or why there is none. Decision 0044."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from recorder.errors import Unavailable
from recorder.replays.recorded_session import InvalidRecording
from recorder.replays.replay_range import AnchorUnknown

Result = TypeVar("Result")


class ReplayNotComputed(Exception):
    """A defect of the service ended a replay or its plan; the message names the kind of error."""


class _Reply(msgspec.Struct, Generic[Result]):
    result: Result | None = None
    #: Why the recording cannot be replayed.
    invalid: str = ""
    #: Kind of error, if a defect of the service ended the task.
    error: str = ""
    #: A store did not answer.
    is_unavailable: bool = False


def encode_reply(compute: Callable[[], Any]) -> bytes:
    """Return the reply of a process with the result of a function, or why there is none."""
    try:
        reply = _Reply[Any](compute())
    except (InvalidRecording, AnchorUnknown) as error:
        reply = _Reply(invalid=str(error))
    except Unavailable:
        reply = _Reply(is_unavailable=True)
    except MemoryError:
        raise
    except Exception as error:  # a defect of the service: the process goes on with other tasks
        reply = _Reply(error=type(error).__name__)
    return msgspec.json.encode(reply)


def decode_reply(reply: bytes, result_type: Any) -> Any:
    """Return the result in the reply of a process.

    Raises:
        InvalidRecording: if the recording cannot be replayed.
        Unavailable: if the store of the snapshots does not answer.
        ReplayNotComputed: if a defect of the service ended the task.
    """
    decoded = msgspec.json.decode(reply, type=_Reply[result_type])
    if decoded.is_unavailable:
        raise Unavailable("The blob store")
    if decoded.invalid:
        raise InvalidRecording(decoded.invalid)
    if decoded.error:
        raise ReplayNotComputed(decoded.error)
    return decoded.result
