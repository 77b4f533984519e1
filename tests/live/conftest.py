"""Fixtures of live replays: one recorded approval for a module."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.databases import create_file
from tests.support.factories import Caller
from tests.support.live_replays import record_approval, running_live_app


@dataclass(frozen=True)
class Recorded:
    """A recording of the approval, and a key that may replay it live."""

    caller: Caller
    session_id: str


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Yield the approval of an invoice, recorded with the browser and sealed."""
    folder = tmp_path_factory.mktemp("live")
    with running_live_app(folder, create_file(folder)) as (service, port):
        caller = service.make_caller(scope="write replay:live")
        yield Recorded(caller, record_approval(caller, port))
