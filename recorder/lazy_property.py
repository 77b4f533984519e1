"""Property that is computed once for each object.

`functools.cached_property` of Python 3.11 holds one lock for all objects of a class while it computes: a
value that takes long for one tenant would keep all others waiting.
"""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

Value = TypeVar("Value")


class lazy_property(Generic[Value]):
    """Property whose value is computed when it is first read, and kept with the object.

    Threads that read it at the same time may each compute it.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object | None, owner: type) -> Self | Value:
        """Return the value, and store it in the object's dictionary, which Python searches first."""
        if instance is None:
            return self
        value = self._compute(instance)
        instance.__dict__[self._name] = value
        return value
