"""Which of several formats a request asks for by its Accept header. RFC 9110 §12.5.1, contract §7 (audit)."""

from fastapi import Request

from recorder.errors import NotAcceptable


def choose_format(request: Request, *given: str) -> str:
    """The format that the header names; the first of `given` where it leaves the choice to us.

    Raises:
        NotAcceptable: if it names formats, and none of these.
    """
    wanted = _wanted(",".join(request.headers.getlist("accept")))
    named = [(quality, name) for name, quality in wanted.items() if name in given and quality > 0]
    if named:
        return max(named, key=lambda pair: pair[0])[1]
    if not wanted or any(_fits_all(name, given) for name, quality in wanted.items() if quality > 0):
        return given[0]
    raise NotAcceptable(" or ".join(given))


def _wanted(header: str) -> dict[str, float]:
    """Media ranges with their quality, in the order of the header."""
    found = {}
    for part in header.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if name:
            found[name] = _quality(parameters)
    return found


def _quality(parameters: list[str]) -> float:
    text = next((one.removeprefix("q=") for one in parameters if one.startswith("q=")), "1")
    try:
        return float(text)
    except ValueError:
        return 1.0


def _fits_all(name: str, given: tuple[str, ...]) -> bool:
    return name == "*/*" or name == f"{given[0].partition('/')[0]}/*"
