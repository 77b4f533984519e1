"""Tables of checks whose names are rows of the specification or of the choices beside it."""

from collections.abc import Callable

from tests.support.factories import Caller

Check = Callable[[Caller], None]


class Rows(dict[str, Check]):
    """Checks by the row that each covers; a test takes the names as its parameters."""

    def row(self, name: str) -> Callable[[Check], Check]:
        """Enter the decorated check as the row of this name."""

        def enter(check: Check) -> Check:
            assert name not in self, "two checks of one row"
            self[name] = check
            return check

        return enter
