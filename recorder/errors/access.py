"""Errors of access: keys, scopes, workspaces, signed addresses, rate limits, quotas. Spec §5, §7, §8."""

from recorder.errors.kinds import Exhausted, Forbidden, Overloaded, Unauthenticated


class MissingAuthorization(Unauthenticated):
    """The request has no Authorization header (401)."""

    code = "missing_authorization"
    title = "Missing authorization"

    def __init__(self) -> None:
        super().__init__("Send the header `Authorization: Bearer <API_KEY>`.")


class InvalidApiKey(Unauthenticated):
    """The Authorization header holds no active key (401)."""

    code = "invalid_api_key"
    title = "Invalid API key"

    def __init__(self) -> None:
        super().__init__(
            "The key is unknown, expired or revoked, or the scheme is not Bearer; send an active key."
        )


class InsufficientScope(Forbidden):
    """The scope of the key does not include the operation (403)."""

    code = "insufficient_scope"
    title = "Insufficient scope"

    #: Mode that the key needs too; None if any will do.
    needed_mode: str | None = None

    def __init__(self, needed: str, detail: str | None = None) -> None:
        makers = "an admin key"
        if needed == "replay:live":  # which an admin key does not imply
            makers += f" that also has {needed}, or the operator (recorder keys create),"
        super().__init__(
            detail or f"This operation needs a key with the scope {needed}; {makers} can create one."
        )
        self.needed = needed


class WorkspaceDisabled(Forbidden):
    """The workspace is suspended or expired (403)."""

    code = "workspace_disabled"
    title = "Workspace disabled"

    def __init__(self, status: str) -> None:
        super().__init__(f"The workspace is {status}; ask its operator to activate it.")


class InvalidSignature(Forbidden):
    """The signature of a signed address is invalid (403)."""

    code = "invalid_signature"
    title = "Invalid signature"

    def __init__(self) -> None:
        super().__init__(
            "The signature of this address is invalid; read the manifest again for a new address."
        )


class UrlExpired(Forbidden):
    """A signed address has expired (403)."""

    code = "url_expired"
    title = "Address expired"

    def __init__(self) -> None:
        super().__init__("This address has expired; read the manifest again for a new address.")


class RateLimited(Exhausted):
    """A rate limit refuses the request (429)."""

    code = "rate_limited"
    title = "Too many requests"

    def __init__(
        self,
        scope: str,
        retry_after_s: int,
        *,
        limit: int | None = None,
        description: str = "",
        detail: str | None = None,
    ) -> None:
        """Create the error.

        Args:
            scope: the limit that refused, as `X-Scope` names it.
            retry_after_s: seconds after which the same request may be accepted.
            limit: the most concurrent requests, if the limit counts them; the headers of the answer then
                show it.
            description: what is limited, for the sentence that names the limit; by default its scope.
            detail: the sentences of the answer, instead of those that name the limit.
        """
        limited = f"of {description}" if description else scope
        super().__init__(
            detail or f"The limit {limited} is reached; try again in {retry_after_s} s. See GET /v1/limits."
        )
        self.retry_after_s = retry_after_s
        self.scope = scope
        self.limit = limit


class TooManyConnections(RateLimited):
    """The client's address has reached its limit of open connections (429)."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            "per_address_connections",
            1,
            limit=limit,
            detail=f"Your address has {limit:,} connections open, which is the limit; close some, or send "
            "several requests on one connection.",
        )


class NoFreeConnection(Overloaded):
    """The process has reached its limit of open connections, and each has a request under way (503)."""

    scope = "per_process_connections"

    def __init__(self, limit: int) -> None:
        super().__init__("connection")
        self.limit = limit


class TooManyStreams(Exhausted):
    """A key, workspace or process has reached its limit of open streams (429)."""

    code = "too_many_streams"
    title = "Too many streams"

    def __init__(self, scope: str, limit: int) -> None:
        super().__init__(f"{limit} streams are open {scope}, which is the limit; close a stream first.")


class QuotaExceeded(Exhausted):
    """The quota of the period does not suffice (429)."""

    code = "quota_exceeded"
    title = "Quota exceeded"

    def __init__(self, metric: str, *, needed: int | None = None, left: int = 0) -> None:
        missing = "are used up" if needed is None else f"do not suffice: {needed} are needed, {left} are left"
        super().__init__(f"The period's {metric} {missing}; GET /v1/quota shows when the next period begins.")
