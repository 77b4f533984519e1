"""Numbers of things in texts for people: "1 session", "2 sessions"."""


def counted(number: int, noun: str) -> str:
    """Return a number with the noun's singular or plural, which must end with s: "1,000 files"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
