"""What the query of a route may hold, told by its parameters. Contract §1 (queries)."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin
from urllib.parse import unquote_to_bytes

from recorder.errors import Problem
from recorder.models.members import shorten

_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")

# Pydantic reads ` 5`, `+5`, `5.0`, `1_0` and digits of every script as numbers too.
_FORMS: dict[type, tuple[re.Pattern[str], str]] = {
    int: (re.compile(r"-?[0-9]{1,18}"), "takes a whole number, written in digits."),
    float: (
        re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,2})?"),
        "takes a number such as 0.05.",
    ),
}


@dataclass(frozen=True)
class QueryRules:
    """The parameters of a route: their names, which repeat, and which are numbers."""

    names: frozenset[str] = frozenset()
    repeated: frozenset[str] = frozenset()
    numbers: dict[str, type] = field(default_factory=dict)

    @classmethod
    def of(cls, parameters: Iterable[Any]) -> "QueryRules":
        """The rules that FastAPI's description of the parameters implies: lists repeat, nothing else does."""
        types = {parameter.alias: parameter.field_info.annotation for parameter in parameters}
        return cls(
            frozenset(types),
            frozenset(name for name, kind in types.items() if get_origin(kind) is list),
            {name: number for name, kind in types.items() if (number := _number(kind)) is not None},
        )

    def problems(self, sent: list[tuple[str, str]]) -> list[Problem]:
        """What is wrong with a query: unknown or repeated names, and numbers in another form."""
        return [*self._wrong_names(sent), *self._wrong_numbers(sent)]

    def _wrong_names(self, sent: list[tuple[str, str]]) -> list[Problem]:
        found = []
        for name, count in Counter(name for name, _ in sent).items():
            if name not in self.names:
                text = f"Unknown parameter. {self._describe_allowed()}"
                found.append(Problem("query", shorten(name), "unknown_parameter", text))
            elif count > 1 and name not in self.repeated:
                found.append(Problem("query", name, "repeated_parameter", f"{name} may be sent once."))
        return found

    def _describe_allowed(self) -> str:
        return f"Allowed here: {', '.join(sorted(self.names))}." if self.names else "This address takes none."

    def _wrong_numbers(self, sent: list[tuple[str, str]]) -> list[Problem]:
        found = {}
        for name, value in sent:
            if name in self.numbers:
                form, text = _FORMS[self.numbers[name]]
                if not form.fullmatch(value):
                    found[name] = Problem("query", name, "invalid_value", f"{name} {text}")
        return list(found.values())


def broken_parameters(query: bytes) -> list[Problem]:
    """Return the parameters of a query whose percent-encoding is broken, or does not encode UTF-8."""
    if b"%" not in query and query.isascii():
        return []
    found = []
    for parameter in query.split(b"&"):
        if not is_encoded(parameter):
            name = parameter.partition(b"=")[0]
            shown = shorten(unquote_to_bytes(name).decode()) if is_encoded(name) else ""
            text = "Send UTF-8 with %XX for each byte that is no visible ASCII character."
            found.append(Problem("query", shown, "invalid_encoding", text))
    return found


def is_encoded(text: bytes) -> bool:
    """Return whether a part of an address is ASCII, each percent sign begins an escape, and all is UTF-8."""
    if not text.isascii() or _BROKEN_ESCAPE.search(text):
        return False
    try:
        unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        return False
    return True


#: For routes whose query holds nothing.
NO_QUERY = QueryRules()


def _number(kind: Any) -> type | None:
    """The kind of number that an annotation asks for; of `int | None` it is `int`."""
    kinds = get_args(kind) or (kind,)
    return next((number for number in _FORMS if number in kinds), None)
