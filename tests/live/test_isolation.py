"""Live sandbox against hostile pages, in a network without a way out. Contract §8."""

from pathlib import Path

import pytest

from tests.support.browser import find_chromium
from tests.support.hostile_pages import ADDRESSES, PUBLIC
from tests.support.isolated_network import ROOT, run_isolated

#: Beside loopback a device with default routes: packets to addresses outside leave, and nothing answers. All
#: forbidden addresses are this machine's, so that they would be reached; without the route of IPv6 a browser
#: looks up no name that has only such an address.
_NETWORK = """
ip link set lo up && ip link add in0 type veth peer name in1 && ip addr add 10.9.9.1/24 dev in0 &&
ip link set in0 up && ip link set in1 up && ip route add default dev in0 &&
ip addr add 2600:9::1/64 dev in0 nodad && ip -6 route add default dev in0"""


@pytest.mark.timeout(900)
def test_hostile_pages_reach_nothing_from_the_live_sandbox(tmp_path: Path) -> None:
    find_chromium()
    resolver, lookups = tmp_path / "resolv.conf", tmp_path / "nsswitch.conf"
    resolver.write_text("nameserver 127.0.0.1\n")
    lookups.write_text("hosts: files dns\n")
    added = [f"ip addr add {text}/{128 if ':' in text else 32} dev lo" for text in (PUBLIC, *ADDRESSES)]
    printed = run_isolated(
        sorted((ROOT / "tests" / "live" / "isolated").glob("hostile_*.py")),
        prepare=" && ".join((_NETWORK, *added)),
        replaced={"/etc/resolv.conf": resolver, "/etc/nsswitch.conf": lookups},
    )
    assert " passed" in printed and "skipped" not in printed, printed
