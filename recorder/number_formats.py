"""Formats of numbers in texts for people: counts, sizes, durations and ages."""


def format_count(number: int, noun: str) -> str:
    """Return a number with the noun's singular or its regular plural: "1 file", "1,000 entries"."""
    if number == 1:
        return f"1 {noun}"
    has_ies = noun.endswith("y") and noun[-2:-1] not in "aeiou"
    return f"{number:,} {noun[:-1]}ies" if has_ies else f"{number:,} {noun}s"


def format_seconds(seconds: float) -> str:
    """Return a duration in whole seconds, from two minutes on in whole minutes."""
    return f"{int(seconds)} s" if seconds < 120 else f"{int(seconds) // 60:,} min"


def format_duration(ms: int) -> str:
    """Return a time of `ms` milliseconds in the unit that suits it."""
    if ms < 1000:
        return f"{ms} ms"
    return f"{ms / 1000:.1f} s" if ms < 120_000 else f"{ms / 60_000:.1f} min"


def format_age(seconds: float) -> str:
    """Return the time since a moment in its largest unit, such as `3 m`."""
    whole = max(0, int(seconds))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if whole >= length:
            return f"{whole // length} {unit}"
    return f"{whole} s"


def format_bytes(count: int) -> str:
    """Return a size in the largest unit that fits: bytes, kB, MB or GB."""
    if count < 1_000:
        return format_count(count, "byte")
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.1f} kB"
