"""The lines at the end of `recorder demo` work as printed, in a network of their own. Contract §9."""

from tests.support.isolated_network import ROOT, run_isolated


def test_the_last_lines_of_the_demonstration_work_as_printed() -> None:
    printed = run_isolated([ROOT / "tests" / "net" / "isolated" / "demo_commands.py"])
    assert "3 passed" in printed, printed
