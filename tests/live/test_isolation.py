"""Live sandbox against hostile pages, in a network that has only loopback. Contract §8."""

from tests.support.browser import find_chromium
from tests.support.isolated_network import ROOT, run_isolated

#: Beside loopback a device with a default route: packets to addresses outside leave, and nothing answers.
_WITH_ROUTE = """
ip link set lo up && ip link add in0 type veth peer name in1 && ip addr add 10.9.9.1/24 dev in0 &&
ip link set in0 up && ip link set in1 up && ip route add default dev in0"""


def test_hostile_pages_reach_nothing_from_the_live_sandbox() -> None:
    find_chromium()
    printed = run_isolated([ROOT / "tests" / "live" / "isolated" / "hostile_pages.py"], prepare=_WITH_ROUTE)
    assert " passed" in printed and "skipped" not in printed, printed
