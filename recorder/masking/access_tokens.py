"""Access tokens: keys that name their maker, web tokens, private keys, what follows `Bearer` or `token=`."""

from collections.abc import Iterator

from recorder.masking.expressions import UNION_BYTES, compile_expression
from recorder.masking.rules import Rule, Span

#: The secret is group 1: what stands before it stays, and it gets the same token wherever it stands.
_BEHIND_A_NAME = (
    r"(?i:\b(?:bearer|basic))(?:[ +]|%20)+([0-9A-Za-z._~+/-]{16,}=*)",
    r"(?i:(?:api[_-]?key|token|secret|password|passwd|signature))(?:=|%3D)([0-9A-Za-z._~+/%-]{8,}=*)",
    # A password in a web address. One character of the scheme is enough: a longer one would keep every scan
    # of a long word alive to the word's end, which took 5 s/MB.
    r"[0-9A-Za-z+.-]://[^\s/?#:@]*:([^\s/?#@]{3,})@",
)
_MADE_BY = (
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
_HINT = "|".join((*_BEHIND_A_NAME, *_MADE_BY, _PRIVATE_KEY))
_any = compile_expression(_HINT, max_bytes=UNION_BYTES)
_named = [compile_expression(expression, keeps_groups=True) for expression in _BEHIND_A_NAME]


def _find(text: bytes) -> Iterator[Span]:
    for match in _any.finditer(text):
        start, end = match.span()
        # Only what was found is scanned again for the group.
        behind_a_name = (found.span(1) for named in _named if (found := named.match(text, start, end)))
        yield next(behind_a_name, (start, end))


TOKEN = Rule("token", _HINT, _find)
