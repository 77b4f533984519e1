"""The HTTP service for the tests of this folder."""

from tests.services import caller, service, stream_service, streamer

__all__ = ["caller", "service", "stream_service", "streamer"]
