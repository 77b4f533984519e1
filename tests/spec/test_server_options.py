"""Options of the API's server: `recorder up`, the pages and the compose file pass the same."""

import re
import shlex
from pathlib import Path

from recorder.supervisor.child_commands import api_command
from tests.support.compose_services import read_compose
from tests.support.project_texts import PAGES, ROOT
from tests.support.sealed_sessions import make_settings

#: The folder and the address belong to one start.
_OWN = {"--app-dir", "--host", "--port"}


def read_options(words: list[str]) -> dict[str, str | None]:
    """Return the options after `uvicorn` with their values; None of those without one."""
    words = [part for word in words[words.index("uvicorn") + 1 :] for part in word.split("=", 1)]
    options: dict[str, str | None] = {}
    for word in words:
        if word.startswith("--"):
            options[word] = None
        elif "--factory" in options and word == "api.app:create_app":
            options["--factory"] = None
        else:
            options[list(options)[-1]] = word
    return {name: value for name, value in options.items() if name not in _OWN}


def options_of_up(folder: Path, proxies: tuple[str, ...] = ()) -> dict[str, str | None]:
    """Return the options that `recorder up` passes."""
    settings = make_settings(folder, trusted_proxies=proxies)
    return read_options(api_command(settings, {}, ROOT, "127.0.0.1", 8700).arguments)


def test_the_pages_and_the_compose_file_pass_the_options_of_up(tmp_path: Path) -> None:
    used = options_of_up(tmp_path)
    assert {"--factory", "--http", "--ws", "--timeout-keep-alive", "--no-proxy-headers"} <= set(used)
    page = PAGES["docs/operations.md"]
    blocks = re.findall(r"^```sh\n(uvicorn .*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [read_options(shlex.split(block.replace("\\\n", " "))) for block in blocks] == [used]
    assert read_options(read_compose(ROOT)["api"]["command"]) == used


def test_a_proxy_in_front_replaces_the_option_that_the_page_names(tmp_path: Path) -> None:
    without, trusted = options_of_up(tmp_path), options_of_up(tmp_path, ("10.0.0.0/8",))
    assert without.keys() - trusted == {"--no-proxy-headers"}
    assert trusted.keys() - without == {"--forwarded-allow-ips"}
    text = "replace `--no-proxy-headers` with `--forwarded-allow-ips ADDRESSES`"
    assert text in PAGES["docs/operations.md"]
