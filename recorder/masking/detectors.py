"""Detectors of values to mask: cards, email addresses, access tokens, patterns; and their masking tokens.

A masking token replaces a value; equal values of a workspace get equal tokens. Contract §8.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from recorder.hashing import compute_keyed_digest
from recorder.masking.expressions import UNION_BYTES, compile_expression

_DIGITS = 16
MASK_TOKEN = re.compile(rf"‹[a-z][a-z0-9_]{{0,31}}:[0-9a-f]{{{_DIGITS}}}›".encode())


def derive_masking_key(secret: bytes, workspace_id: str) -> bytes:
    """Return the key of a workspace's tokens: equal values of two workspaces get different tokens."""
    return compute_keyed_digest(secret, "masking-key", workspace_id.encode())


def compute_token_digest(key: bytes, value: str) -> str:
    """Return the hex digits of a value's token; they do not depend on the rule that found the value."""
    return compute_keyed_digest(key, "masked-value", value.encode()).hex()[:_DIGITS]


def format_mask_token(name: str, digest: str) -> str:
    """Return the token of a digest, such as `‹email:3f2a90c1d4e5f607›`."""
    return f"‹{name}:{digest}›"


def read_token_digits(text: str, replacements: Collection[str]) -> str | None:
    """Return the digits of a text that is one token, alone or after a replacement; None for other texts."""
    replacement, bracket, rest = text.rpartition("‹")
    if MASK_TOKEN.fullmatch(f"{bracket}{rest}".encode()) and (not replacement or replacement in replacements):
        return rest[-_DIGITS - 1 : -1]
    return None


def plain_email(text: str) -> str:
    """Return an address in its compared form: one spelling per mailbox, also if it was URL-encoded."""
    return text.replace("%40", "@").replace("＠", "@").lower()


def plain_card(text: str) -> str:
    """Return the digits of a card number, without the characters that group them."""
    return "".join(letter for letter in text if letter.isdigit())


#: First byte of a span of UTF-8 text, and the byte after the span.
Span = tuple[int, int]


def _return_unchanged(text: str) -> str:
    return text


@dataclass(frozen=True)
class DetectorRule:
    """Rule of masking: a built-in kind or a pattern."""

    name: str
    #: Expression that matches at least wherever `find` finds a span.
    hint: str
    find: Callable[[bytes], Iterator[Span]]
    #: Normalizes a value before its token is computed: equal values in other spellings get equal tokens.
    plain: Callable[[str], str] = _return_unchanged
    #: Text before the token.
    replacement: str = ""

    @classmethod
    def of(cls, pattern: Mapping[str, str]) -> "DetectorRule":
        """Return the rule of a stored pattern of a workspace or a workflow."""
        expression = compile_expression(pattern["pattern"])

        def find(text: bytes) -> Iterator[Span]:
            return (match.span() for match in expression.finditer(text))

        return cls(pattern["name"], pattern["pattern"], find, replacement=pattern.get("replacement", ""))


#: The secret is group 1: the name before it is kept, and the token does not depend on it.
_NAMED_SECRETS = (
    r"(?i:\b(?:bearer|basic))(?:[ +]|%20)+([0-9A-Za-z._~+/-]{16,}=*)",
    r"(?i:(?:api[_-]?key|token|secret|password|passwd|signature))(?:=|%3D)([0-9A-Za-z._~+/%-]{8,}=*)",
    # A password in a web address. One character of the scheme is enough: a longer one would keep every scan
    # of a long word alive to the word's end, which took 5 s/MB.
    r"[0-9A-Za-z+.-]://[^\s/?#:@]*:([^\s/?#@]{3,})@",
)
_VENDOR_KEYS = (
    r"nsk_(?:live|test|local)_[0-9A-Za-z]{20,}",  # this service
    r"whsec_[0-9A-Za-z+/=_-]{16,}",
    r"eyJ[0-9A-Za-z_-]{8,}\.eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]*",  # JSON Web Tokens
    r"(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[0-9A-Z]{16}\b",  # Amazon
    r"gh[opusr]_[0-9A-Za-z]{36,}",  # GitHub
    r"github_pat_[0-9A-Za-z_]{22,}",
    r"gl(?:pat|oas|rt|cbt|ptt)-[0-9A-Za-z_.-]{20,}",  # GitLab
    r"xox[abeoprs]-[0-9A-Za-z-]{10,}",  # Slack
    r"xapp-[0-9]-[0-9A-Za-z-]{10,}",
    r"[sr]k_(?:live|test)_[0-9A-Za-z]{16,}",  # Stripe
    r"\bsk-(?:proj|svcacct|admin|ant|or)-[0-9A-Za-z_-]{16,}",  # OpenAI, Anthropic, OpenRouter
    r"\bsk-[0-9A-Za-z]{32,}",
    r"AIza[0-9A-Za-z_-]{35}",  # Google
    r"ya29\.[0-9A-Za-z_-]{20,}",
    r"GOCSPX-[0-9A-Za-z_-]{20,}",
    r"\bhf_[0-9A-Za-z]{30,}",  # Hugging Face
    r"\bnpm_[0-9A-Za-z]{36}",
    r"pypi-[0-9A-Za-z_-]{32,}",
    r"\bSG\.[0-9A-Za-z_-]{16,}\.[0-9A-Za-z_-]{16,}",  # SendGrid
    r"\bSK[0-9a-f]{32}\b",  # Twilio
    r"\bdo[opr]_v1_[0-9a-f]{64}",  # DigitalOcean
    r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",  # Shopify
    r"\bdapi[0-9a-f]{32}",  # Databricks
    r"dckr_pat_[0-9A-Za-z_-]{20,}",  # Docker
)
_PRIVATE_KEY = (
    r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY(?: BLOCK)?-----(?s:.*?)"
    r"(?:-----END [A-Z ]{0,32}PRIVATE KEY(?: BLOCK)?-----|\z)"
)
_ACCESS_TOKEN_HINT = "|".join((*_NAMED_SECRETS, *_VENDOR_KEYS, _PRIVATE_KEY))
_any = compile_expression(_ACCESS_TOKEN_HINT, max_bytes=UNION_BYTES)
_named = [compile_expression(expression, keeps_groups=True) for expression in _NAMED_SECRETS]


def _detect_access_tokens(text: bytes) -> Iterator[Span]:
    for match in _any.finditer(text):
        start, end = match.span()
        # Only the match is scanned again for the group.
        secrets = (secret.span(1) for named in _named if (secret := named.match(text, start, end)))
        yield next(secrets, (start, end))


ACCESS_TOKEN = DetectorRule("token", _ACCESS_TOKEN_HINT, _detect_access_tokens)


# American Express, Diners, JCB, Maestro, Mastercard, Discover, UnionPay and Visa begin with 2 to 6; the
# milliseconds and nanoseconds of today's time with 1.
_FIRST = "[2-6]"
_GAP = r"[ \-\x{A0}\x{2007}\x{2009}\x{2010}-\x{2013}\x{202F}]"
# The same in bytes of UTF-8, for Python's expressions.
_GAP_BYTES = rb"(?:[ \-]|\xc2\xa0|\xe2\x80[\x87\x89\x90-\x93\xaf])"
#: The longest first: digits after a number in groups (such as its check code) may resemble another group.
_SHAPES = (
    rf"{_FIRST}[0-9]{{3}}(?:{_GAP}[0-9]{{4}}){{3}}{_GAP}[0-9]{{3}}",
    rf"{_FIRST}[0-9]{{3}}(?:{_GAP}[0-9]{{4}}){{3}}",
    rf"{_FIRST}[0-9]{{3}}{_GAP}[0-9]{{6}}{_GAP}[0-9]{{5}}",
    rf"{_FIRST}[0-9]{{3}}{_GAP}[0-9]{{6}}{_GAP}[0-9]{{4}}",
    rf"{_FIRST}[0-9]{{12,18}}",
)
# A number next to letters or digits is part of an id; a number after a point is a fraction.
_CARD_HINT = rf"(?:^|[^0-9A-Za-z.]|[^0-9]\.|^\.)(?:{'|'.join(_SHAPES)})(?:$|[^0-9A-Za-z])"
# Python's own expressions: of bounded length, so none can take long, and five times as fast to call at an
# offset as RE2's. Every shape that fits where a run of digits begins is a group.
_candidates = re.compile(
    rf"(?<![0-9A-Za-z])(?<![0-9]\.)(?={_FIRST}[0-9]{{3}})".encode()
    + b"".join(
        rb"(?:(?=(%b)(?![0-9A-Za-z]))|)" % shape.encode().replace(_GAP.encode(), _GAP_BYTES)
        for shape in _SHAPES
    )
)
_NO_DIGITS = bytes(set(range(256)) - set(b"0123456789"))
_DOUBLED = bytes.maketrans(b"0123456789", b"0246813579")


def _detect_card_numbers(text: bytes) -> Iterator[Span]:
    end = 0
    for candidate in _candidates.finditer(text):
        start = candidate.start()
        # A number may begin inside a candidate that is none: 0123 4111 1111 1111 1111.
        if start >= end and candidate.lastindex is not None:
            number = next(filter(_passes_luhn, filter(None, candidate.groups())), None)
            if number is not None:
                end = start + len(number)
                yield start, end


def _passes_luhn(shape: bytes) -> bool:
    """Return whether the digits of a possible card number have a valid check digit."""
    digits = shape.translate(None, _NO_DIGITS)
    total = sum(digits[-1::-2]) + sum(digits[-2::-2].translate(_DOUBLED)) - 48 * len(digits)
    return total % 10 == 0


CARD = DetectorRule("card", _CARD_HINT, _detect_card_numbers, plain_card)


# Latin, Greek and Cyrillic letters with their marks. Other letters next to an address are not part of it:
# Chinese and Japanese are written without spaces.
_LETTERS = r"A-Za-z\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{24F}\x{300}-\x{52F}"
_ALNUM = rf"0-9{_LETTERS}"
_EMAIL_HINT = (
    rf"[{_ALNUM}_][{_ALNUM}_.%+'-]*(?:@|%40|＠)"
    rf"(?:[{_ALNUM}](?:[{_ALNUM}-]*[{_ALNUM}])?\.)+(?:xn--[0-9A-Za-z-]+|[{_LETTERS}]{{2,63}})"
)
_address = compile_expression(_EMAIL_HINT, max_bytes=UNION_BYTES)
# `logo@2x.png` is a picture for high-resolution screens.
_PICTURE = re.compile(rb"@[0-9](?:\.[0-9])?x\.(?:png|jpe?g|gif|webp|avif|svg|bmp|ico)\Z", re.IGNORECASE)


def _detect_emails(text: bytes) -> Iterator[Span]:
    spans = (match.span() for match in _address.finditer(text))
    return (span for span in spans if not _PICTURE.search(text[span[0] : span[1]]))


EMAIL = DetectorRule("email", _EMAIL_HINT, _detect_emails, plain_email)


def list_subject_digests(key: bytes, subject: str) -> frozenset[str]:
    """Return the digits of all tokens that may replace a person's id as a whole, which erasure searches for.

    Patterns keep the text; a built-in kind normalizes it only where the kind finds the whole text.
    """
    text = subject.encode()
    whole = (0, len(text))
    plain = {rule.plain(subject) for rule in (EMAIL, CARD) if whole in rule.find(text)}
    return frozenset(compute_token_digest(key, value) for value in {subject, *plain})
