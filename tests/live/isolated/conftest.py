"""Nothing in this folder may run where it could reach anything."""

import socket

import pytest


@pytest.fixture(autouse=True)
def no_way_out() -> None:
    """Require a network of loopback, and of a pair of interfaces that lead to each other alone.

    The browser uses WebRTC only where there is an interface beside loopback.
    """
    assert {name for _, name in socket.if_nameindex()} == {"lo", "in0", "in1"}, "this network has a way out"
