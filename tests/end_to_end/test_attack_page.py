"""A hostile page in Chromium against a deployment, in a network that has only loopback. Decision 0031."""

from tests.support.browser import find_chromium
from tests.support.isolated_network import ROOT, run_isolated


def test_a_hostile_page_gets_nowhere() -> None:
    find_chromium()
    printed = run_isolated([ROOT / "tests" / "net" / "isolated" / "attack_page.py"])
    assert "4 passed" in printed, printed
