"""The HTTP service for the tests of this folder."""

from tests.support.service_fixtures import caller, service

__all__ = ["caller", "service"]
