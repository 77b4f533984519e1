"""The HTTP service for the tests of this folder."""

from tests.support.http_exports import owner
from tests.support.service_fixtures import caller, second_process, service, stream_service, streamer

__all__ = ["caller", "owner", "second_process", "service", "stream_service", "streamer"]
