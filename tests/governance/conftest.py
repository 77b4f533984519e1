"""Fixtures of the service on both engines."""

from tests.support.service_fixtures import caller, service

__all__ = ["caller", "service"]
