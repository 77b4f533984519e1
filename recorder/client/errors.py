"""Errors that the client raises. Spec §7, contract §1 (errors).

ClientError
├── ApiError       the service answered with a problem (`status`, `code`, `detail`, `request_id`, `errors`)
├── Unreachable    no answer, or one that is not the service's
├── BufferFull     a recording has buffered as much as it may, and the service still takes nothing
├── ExportFailed   an export that was waited for ended `failed`
└── TookTooLong    a state that was waited for was not reached in time

These are not subclasses of `recorder.errors`: they report answers of a service, which raises the others.
"""

from typing import Any

from recorder.number_formats import format_count

#: Temporary states: a limit, a restart, a gateway in front of a restarting service.
TEMPORARY_STATUSES = (429, 502, 503, 504)
_SHOWN_PROBLEMS = 3
#: Seconds of a `Retry-After` beyond which an operator must act first.
_LONG_WAIT_S = 600
#: Code of an answer without a code, which another program than the service sent.
UNKNOWN_CODE = "unknown"
_NEXT_BY_STATUS = {
    401: "Check the key; the first one of a workspace comes from: recorder workspaces create.",
    403: "Use a key that may do this.",
    413: "Send it in smaller parts.",
    429: "Wait before you try again, or lower the number of parallel uploads.",
    503: "The service is starting or its storage does not answer; try again.",
}
_NEXT_BY_CODE = {
    "quota_exceeded": "Wait for the next month, or ask the operator for another tier.",
    "too_many_streams": "",  # its detail says it
    "workspace_disabled": "Its operator can make the workspace active again.",
}


class ClientError(Exception):
    """Base of all errors that the client raises."""


class ApiError(ClientError):
    """The service refused a request; the message says why and what to try next."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        request_id: str | None = None,
        errors: list[dict[str, Any]] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.status = status
        self.code = code
        self.detail = detail
        self.request_id = request_id
        self.errors = errors or []
        self.retry_after_s = retry_after_s
        super().__init__(self._format_message())

    def _format_message(self) -> str:
        problems = [
            f"{item.get('pointer') or item.get('in', '')}: {item.get('message', '')}"
            for item in self.errors[:_SHOWN_PROBLEMS]
            if item.get("message") != self.detail  # of a lone error it is the same sentence
        ]
        if len(self.errors) > _SHOWN_PROBLEMS:
            problems.append(f"{format_count(len(self.errors) - _SHOWN_PROBLEMS, 'more problem')}.")
        # This detail only counts the problems and names their positions.
        is_list = self.code == "validation_failed" and problems
        parts = [f"{self.status} {self.code}:", *([] if is_list else [self.detail]), *problems]
        parts.append(self._find_advice())
        if self.request_id:
            parts.append(f"({self.request_id})")
        return " ".join(part for part in parts if part)

    def _find_advice(self) -> str:
        if self.status == 503 and (self.retry_after_s or 0) > _LONG_WAIT_S:
            return ""  # only the operator can help, as its detail says
        if self.code == UNKNOWN_CODE and self.status in (401, 403):
            return ""  # of another program's answer, to which the key does not matter
        return _NEXT_BY_CODE.get(self.code, _NEXT_BY_STATUS.get(self.status, ""))


class Unreachable(ClientError):
    """The service gave no answer.

    Attributes:
        may_be_done: whether the request may have been carried out all the same.
    """

    def __init__(self, base_url: str, what: str, *, may_be_done: bool, advice: str | None = None) -> None:
        self.may_be_done = may_be_done
        then = advice or (
            "The request may have been carried out; check before you repeat it."
            if may_be_done
            else "Is it running, and is this its address? Start it with: recorder up."
        )
        super().__init__(f"{base_url}: {what}. {then}")


class BufferFull(ClientError):
    """An item was not recorded: the service acknowledges nothing, and the buffer is full."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(
            f"The item was not recorded: {most_bytes // 2**20} MiB wait to be sent already. "
            "Record it again once the service answers; flush() sends what waits."
        )


class ExportFailed(ClientError):
    """An export ended as `failed`."""

    def __init__(self, export: dict[str, Any]) -> None:
        self.export = export
        error = export.get("error") or {}
        super().__init__(f"{export.get('id')} failed: {error.get('code', 'no code')}. Create it again.")


class TookTooLong(ClientError):
    """A state that was waited for was not reached in time."""

    def __init__(self, what: str, seconds: float, *, advice: str | None = None) -> None:
        then = advice or "Check that Dagster runs (not --no-dagster), or wait longer."
        super().__init__(f"{what} within {seconds:g} s. {then}")
