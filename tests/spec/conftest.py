"""The HTTP service for the tests of this folder."""

from tests.services import caller, service

__all__ = ["caller", "service"]
