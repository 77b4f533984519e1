"""Statements that reach a database, as a test sees, delays or fails them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy


@contextmanager
def before_each_statement(act: Callable[[str], object]) -> Iterator[None]:
    """Call a function with the text of each statement of this process before it is executed."""

    def call(_: object, __: object, statement: str, *___: object) -> None:
        act(statement)

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", call)
    try:
        yield
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", call)
