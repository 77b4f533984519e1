"""Nothing in this folder may run where it could reach anything."""

import socket

import pytest


@pytest.fixture(autouse=True)
def only_loopback() -> None:
    """Nothing here may run where it could reach anything."""
    assert [name for _, name in socket.if_nameindex()] == ["lo"], "this network has a way out"
