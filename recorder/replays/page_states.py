"""States of a page as roles and names, and how similar two of them are. Spec §4.6."""

from collections.abc import Collection, Sequence

import xxhash

#: Roles that say which state a page is in.
_KEY_ROLES = frozenset(("title", "heading", "dialog", "alertdialog", "alert", "status"))
_MAX_DIFFERENCES = 20


def compare_page_states(expected: Collection[str], observed: Collection[str]) -> float:
    """Return the similarity of two states, 0 to 1.

    Half the Jaccard index of titles, headings, dialogs, alerts and status, half that of all tokens; of all
    tokens alone where neither state has such.

    Args:
        expected: `state_tokens` of a frame.
        observed: those of the other.
    """
    tokens, others = frozenset(expected), frozenset(observed)
    if tokens == others:
        return 1.0
    whole = _compute_state_jaccard(tokens, others)
    keys = frozenset(filter(_has_key_state_role, tokens)), frozenset(filter(_has_key_state_role, others))
    if not keys[0] and not keys[1]:
        return whole
    return round((_compute_state_jaccard(*keys) + whole) / 2, 6)


def list_state_differences(
    expected: Collection[str], observed: Collection[str]
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Return the missing and the unexpected `(role, name)` pairs, those of titles and headings first."""
    tokens, others = frozenset(expected), frozenset(observed)
    return _split_state_tokens(tokens - others), _split_state_tokens(others - tokens)


def hash_page_state(tokens: Sequence[str] | None) -> str | None:
    """Return the fingerprint of a state; None where it is unknown."""
    if not tokens:
        return None
    return f"fsh1_{xxhash.xxh64_hexdigest(chr(10).join(sorted(tokens)).encode('utf-8', 'replace'))}"


def _compute_state_jaccard(tokens: frozenset[str], others: frozenset[str]) -> float:
    union = len(tokens | others)
    return len(tokens & others) / union if union else 1.0


def _has_key_state_role(token: str) -> bool:
    return token.partition(" ")[0] in _KEY_ROLES


def _split_state_tokens(tokens: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """Return role and name of the tokens that a difference lists: key roles first, a few at most."""
    chosen = sorted(tokens, key=lambda token: (not _has_key_state_role(token), token))[:_MAX_DIFFERENCES]
    return tuple((role, name) for role, _, name in (token.partition(" ") for token in chosen))
