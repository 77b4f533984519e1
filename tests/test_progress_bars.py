"""The line that shows what a command waits for: on a terminal alone, and gone at the end."""

from io import StringIO

import pytest
from rich.console import Console

from recorder.progress_bars import open_waiting_line


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_command_says_on_a_terminal_what_it_waits_for(is_terminal: bool) -> None:
    output = StringIO()
    console = Console(file=output, force_terminal=is_terminal, width=80)
    with open_waiting_line(console) as show:
        show("rpl_1 queued")
        show(None)
        shown = len(output.getvalue())
        show(None)
        assert len(output.getvalue()) == shown
        show("rpl_1 running")
    assert ("rpl_1 queued" in output.getvalue()) is is_terminal
    assert ("rpl_1 running" in output.getvalue()) is is_terminal
    if is_terminal:
        # The cursor is shown again, and the line is erased.
        assert "\x1b[?25h" in output.getvalue() and output.getvalue().endswith("\x1b[2K")
    else:
        assert output.getvalue() == ""
