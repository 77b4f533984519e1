"""Who may not, or not now: keys, scopes, workspaces, signed addresses, limits. Spec §5, §7, §8."""

from recorder.errors.kinds import Exhausted, Forbidden, Unauthenticated


class MissingAuthorization(Unauthenticated):
    """No Authorization header."""

    code = "missing_authorization"
    title = "Missing authorization"

    def __init__(self) -> None:
        super().__init__("Send the header `Authorization: Bearer <API_KEY>`.")


class InvalidApiKey(Unauthenticated):
    """The key matches no active key."""

    code = "invalid_api_key"
    title = "Invalid API key"

    def __init__(self) -> None:
        super().__init__("The key is unknown, expired or revoked, or the scheme is not Bearer.")


class InsufficientScope(Forbidden):
    """The key may not do this."""

    code = "insufficient_scope"
    title = "Insufficient scope"

    def __init__(self, needed: str) -> None:
        super().__init__(f"This needs a key with the scope {needed}.")
        self.needed = needed


class WorkspaceDisabled(Forbidden):
    """The workspace is suspended or expired."""

    code = "workspace_disabled"
    title = "Workspace disabled"

    def __init__(self, status: str) -> None:
        super().__init__(f"The workspace is {status}; its operator can make it active again.")


class InvalidSignature(Forbidden):
    """A signed address that was altered."""

    code = "invalid_signature"
    title = "Invalid signature"

    def __init__(self) -> None:
        super().__init__(
            "This address was not signed by the service; read the manifest again for a fresh one."
        )


class UrlExpired(Forbidden):
    """A signed address past its time."""

    code = "url_expired"
    title = "Address expired"

    def __init__(self) -> None:
        super().__init__("This address has expired; read the manifest again for a fresh one.")


class RateLimited(Exhausted):
    """A rate limit was hit."""

    code = "rate_limited"
    title = "Too many requests"

    def __init__(self, scope: str, retry_after_s: int, *, limit: int | None = None) -> None:
        """Create the error.

        Args:
            scope: the limit that refused, as `X-Scope` names it.
            retry_after_s: seconds after which the same request may be accepted.
            limit: most pieces of work at once, where the limit counts work under way; the headers of the
                answer then show it.
        """
        super().__init__(f"The limit {scope} is reached; try again in {retry_after_s} s. See GET /v1/limits.")
        self.retry_after_s = retry_after_s
        self.scope = scope
        self.limit = limit


class TooManyStreams(Exhausted):
    """As many streams are open as may be."""

    code = "too_many_streams"
    title = "Too many streams"

    def __init__(self, scope: str, limit: int) -> None:
        super().__init__(f"{limit} streams are open {scope}, which is the most; close one first.")


class QuotaExceeded(Exhausted):
    """The volume of the period is used up."""

    code = "quota_exceeded"
    title = "Quota exceeded"

    def __init__(self, metric: str, *, needed: int | None = None, left: int = 0) -> None:
        missing = "are used up" if needed is None else f"do not suffice: {needed} are needed, {left} are left"
        super().__init__(f"The period's {metric} {missing}; GET /v1/quota says when the next period begins.")
