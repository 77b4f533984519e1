"""Emulated stores, started once for all tests of this folder."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.object_stores import ENVIRONMENT, EmulatedS3, EmulatedStore, running_store

Opened = Callable[[str], EmulatedStore]


@pytest.fixture(scope="session")
def opened() -> Iterator[Opened]:
    """Start the emulator of a kind, the first time that it is asked for."""
    running: dict[str, EmulatedStore] = {}
    with ExitStack() as stack:

        def _open(kind: str) -> EmulatedStore:
            if kind not in running:
                running[kind] = stack.enter_context(running_store(kind))
            return running[kind]

        yield _open


@pytest.fixture(autouse=True)
def _own_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=["s3", "gcs", "azure_blob"])
def store(request: pytest.FixtureRequest, opened: Opened) -> EmulatedStore:
    """Return each of the three stores."""
    return opened(request.param)


@pytest.fixture
def s3(opened: Opened) -> EmulatedS3:
    """Return the store whose roles and uploads are recorded."""
    result = opened("s3")
    assert isinstance(result, EmulatedS3)
    return result
