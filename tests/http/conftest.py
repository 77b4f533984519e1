"""The HTTP service for the tests of this folder."""

from tests.exported import owner
from tests.services import caller, service, stream_service, streamer

__all__ = ["caller", "owner", "service", "stream_service", "streamer"]
