"""Calls to hostile addresses, in a network that has only loopback. Contract §6."""

from tests.support.isolated_network import ROOT, run_isolated


def test_hostile_addresses_and_servers_get_nowhere() -> None:
    printed = run_isolated(sorted((ROOT / "tests" / "net" / "isolated").glob("hostile_*.py")))
    assert " passed" in printed and "skipped" not in printed, printed
