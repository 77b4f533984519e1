"""Content types of request bodies: the type that an address takes, and its charset. Contract §1 (JSON in)."""

import re
from email.message import Message

from recorder.errors import UnsupportedMediaType

JSON = "application/json"
_UTF_8 = ("utf-8", "utf8")
#: Longer ones name no type that any address takes; the parser takes quadratic time for their parameters.
_MOST_CHARACTERS = 255
#: Parameters in parts or with a language (RFC 2231) belong to mail; HTTP has none.
_MAIL_PARAMETER = re.compile(r";[^=;]*\*")


def require_media_type(header: str | None, *allowed: str, needed: str) -> str:
    """Return the media type of a body that says it is of an allowed one, in UTF-8.

    Args:
        header: the `Content-Type`, whole; None where none was sent.
        allowed: media types in lower case.
        needed: what to send, for the error: "events as application/json".

    Raises:
        UnsupportedMediaType: if it is of another type, or names another charset.
    """
    if header == JSON and JSON in allowed:  # what nearly every client sends
        return JSON
    kind = (header or "").partition(";")[0].strip().lower()
    if kind not in allowed:
        raise UnsupportedMediaType(needed)
    if not names_no_other_charset(header or ""):
        raise UnsupportedMediaType(f"{needed}, in UTF-8; a charset is named once or not at all")
    return kind


def names_no_other_charset(header: str) -> bool:
    """Return whether a `Content-Type` names UTF-8 once, or no charset.

    Readers differ in which of two charsets they take. A header that is too long to be read may name another.
    """
    if len(header) > _MOST_CHARACTERS or _MAIL_PARAMETER.search(header):
        return False
    message = Message()
    message["content-type"] = header
    names = [name.lower() for name, _ in message.get_params([])]
    return names.count("charset") <= 1 and message.get_content_charset() in (None, *_UTF_8)
