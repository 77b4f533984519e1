"""Numbers in texts for people: "1 session", "2 sessions", "80 s", "3 min"."""


def format_count(number: int, noun: str) -> str:
    """Return a number with the noun's singular or its regular plural: "1 file", "1,000 entries"."""
    if number == 1:
        return f"1 {noun}"
    has_ies = noun.endswith("y") and noun[-2:-1] not in "aeiou"
    return f"{number:,} {noun[:-1]}ies" if has_ies else f"{number:,} {noun}s"


def format_seconds(seconds: float) -> str:
    """Return a duration in whole seconds, from two minutes on in whole minutes."""
    return f"{int(seconds)} s" if seconds < 120 else f"{int(seconds) // 60:,} min"
