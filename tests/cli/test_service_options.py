"""Options `--url` and `--key` of the commands that call a service."""

import pytest
from typer.testing import CliRunner

from recorder.cli import app


@pytest.mark.parametrize(
    ("url", "key", "sentence"),
    [
        (
            "127.0.0.1:8700",
            "nsk_local_x",
            "--url: takes an address such as http://127.0.0.1:8700; it must begin",
        ),
        ("http://127.0.0.1:9", "", "--key: takes an API key such as nsk_local_"),
    ],
)
def test_a_wrong_option_is_named_with_what_it_takes(url: str, key: str, sentence: str) -> None:
    done = CliRunner().invoke(
        app, ["sessions", "list", "--url", url, "--key", key], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"}
    )
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.replace("│", " ").split())
