"""The dataset card, and what other tools load through it, offline. Design §1, research: loads in one line."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from recorder.datasets.schemas import SCHEMAS
from recorder.exports.card import COLUMNS, Statistics, dataset_card
from recorder.runtime import Runtime
from tests.support.dataset_readers import FORMATS
from tests.support.export_runs import export, manifest_of
from tests.support.sealed_sessions import Recording, make_runtime, seal

_HERE = Path(__file__).parents[2]
# Each format's first kind through its card; then what every tool makes of the files.
_LOADS = """
import json, sys, os, glob
import datasets
datasets.disable_progress_bars()
found = {}
for folder in sys.argv[2:]:
    os.chdir(folder)
    format = json.load(open("manifest.json"))["format"]
    kinds = ["samples"] if format == "webdataset" else ["events", "frames"]
    for kind in kinds:
        rows = datasets.load_dataset(os.getcwd(), kind, split="train", cache_dir=sys.argv[1])
        found[f"{format} {kind}"] = len(rows)
        features = {name: type(feature).__name__ for name, feature in rows.features.items()}
        if kind != "events" and format != "jsonl":
            name = "png" if kind == "samples" else "image"
            found[f"{format} picture"] = [features[name], [row[name] and row[name].size for row in rows]]
        first = rows[0]
        found[f"{format} {kind} ids"] = (first["json"] if kind == "samples" else first)["session_id"]
print(json.dumps(found))
"""
_TOOLS = """
import json, os, re, sys
found = {}
for folder in sys.argv[1:]:
    os.chdir(folder)
    page = open("README.md").read()
    for line in re.search("```python\\n(.*?)```", page, re.DOTALL)[1].splitlines():
        name = line.split(";")[0].removeprefix("import ").split(", ")[-1].split(" ")[0]
        if name in ("datasets", "recorder"):
            continue
        scope = {}
        before, _, last = line.partition("; ")
        exec(before, scope)
        rows = eval(last, scope)
        count = {"polars": lambda: rows.collect().height, "duckdb": lambda: len(rows.fetchall()),
                 "pyarrow.dataset": lambda: rows.count_rows(), "webdataset": lambda: sum(1 for _ in rows)}
        found[f"{os.path.basename(folder)} {name}"] = count[name]()
print(json.dumps(found))
"""
_PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc0000003010100"
    "c9fe92ef0000000049454e44ae426082"
)


def _run(code: str, *arguments: str) -> dict[str, Any]:
    offline = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, cwd=_HERE, env=offline, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    with pytest.MonkeyPatch.context() as patch:
        # What is shown as a picture must be one.
        patch.setattr("tests.support.sealed_sessions.picture", lambda session_id, number: _PNG)
        opened = make_runtime(tmp_path_factory.mktemp("card"))
        seal(opened, [Recording(frames=[0, 100, 600], outcome=None), Recording(actor_kind=None)])
        expired = Recording(workflow="login", frames=[0])
        seal(opened, [expired])
    for key in list(opened.blobs.keys("frames/")):
        if expired.session_id in key:
            opened.blobs.delete(key)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def folders(runtime: Runtime) -> dict[str, Path]:
    return {format: export(runtime, workflow=["checkout", "login"], format=format) for format in FORMATS}


def _head(card: str) -> Any:
    return yaml.safe_load(card.split("---\n")[1])


def test_every_format_loads_through_its_card(folders: dict[str, Path], tmp_path: Path) -> None:
    output = _run(_LOADS, str(tmp_path), *map(str, folders.values()))
    for format in ("parquet", "jsonl", "arrow"):
        assert (output[f"{format} events"], output[f"{format} frames"]) == (9, 4)
    assert output["webdataset samples"] == 4
    for format in ("parquet", "arrow", "webdataset"):
        assert output[f"{format} picture"] == ["Image", [[1, 1], [1, 1], [1, 1], None]]


def test_every_line_on_the_page_loads_all_rows(folders: dict[str, Path]) -> None:
    output = _run(_TOOLS, *map(str, folders.values()))
    ids = {folder.name: format for format, folder in folders.items()}
    counts = {(ids[key.split()[0]], key.split()[1]): count for key, count in output.items()}
    assert counts == {
        ("parquet", "polars"): 9,
        ("parquet", "duckdb"): 9,
        ("parquet", "pyarrow.dataset"): 9,
        ("jsonl", "polars"): 9,
        ("jsonl", "duckdb"): 9,
        ("arrow", "polars"): 9,
        ("arrow", "pyarrow.dataset"): 9,
        ("webdataset", "webdataset"): 4,
    }


@pytest.mark.parametrize("format", FORMATS)
def test_the_head_names_files_that_are_there(folders: dict[str, Path], format: str) -> None:
    head = _head((folders[format] / "README.md").read_text())
    for config in head["configs"]:
        assert list(folders[format].glob(config["data_files"][0]["path"]))
    names = [config["config_name"] for config in head["configs"]]
    assert names == [info["config_name"] for info in head["dataset_info"]]
    assert [config["default"] for config in head["configs"]].count(True) == 1


def test_the_page_shows_figures_parts_and_columns(folders: dict[str, Path]) -> None:
    page = (folders["parquet"] / "README.md").read_text()
    assert "9 events, 4 frames, 6 actions" in page
    assert "| success | 2 |" in page
    assert "| human | 2 |" in page
    assert "| click | 3 |" in page
    assert "| dhash | uint64 | yes |" in page
    assert manifest_of(folders["parquet"])["row_set_sha256"] in page
    assert "license" not in page.lower()


def _marks(card: str) -> Counter[str]:
    """Count the Markdown elements of the page, other than plain text and rows of tables."""
    tokens = MarkdownIt("commonmark").enable("table").parse(card.split("---\n", 2)[2])
    inline = [child.type for token in tokens for child in token.children or [] if child.type != "text"]
    blocks = [token.type for token in tokens if not token.type.startswith(("t", "inline"))]
    return Counter([*inline, *blocks])


_NONE = Statistics(splits=[], outcomes=[], actor_kinds=[], event_types=[], duration_ms=0)
_HOSTILE = [
    "v1\n---\nconfigs:\n- config_name: evil",
    "---",
    "x: [y",
    "# ](javascript:alert(1))",
    "<script>alert(1)</script>",
    "![](https://evil.example/pixel.png)",
    "a | b `c` *d* _e_ ~~f~~ $g$",
    "```\n# Title\n```python\nimport os",
    "\u202egnp.exe",
    "https://evil.example @someone",
]


@pytest.mark.parametrize("text", _HOSTILE)
@pytest.mark.parametrize("member", ["tag", "filter", "outcome"])
def test_what_clients_wrote_is_shown_and_is_nothing_else(
    folders: dict[str, Path], text: str, member: str
) -> None:
    manifest, statistics = manifest_of(folders["parquet"]), _NONE
    plain = dataset_card(manifest, statistics)
    match member:
        case "tag":
            manifest["tag"] = text
        case "filter":
            manifest["spec"]["filter"]["tag"] = text
        case "outcome":
            statistics = Statistics(**vars(_NONE) | {"outcomes": [(text, 1)], "event_types": [(text, 1)]})
    card = dataset_card(manifest, statistics)
    assert _head(card) == _head(plain)
    assert card.splitlines()[0] == "---"
    assert _marks(card) == _marks(plain)
    assert not {mark for mark in card if not mark.isprintable()} - {"\n"}
    # A block of code is ended by a line of its own only, and text in JSON has none.
    added = {"tag": 0, "filter": 1, "outcome": 2}[member]
    assert len(card.splitlines()) == len(plain.splitlines()) + added


def test_of_many_event_types_the_rest_is_counted(folders: dict[str, Path]) -> None:
    types = [(f"type {number}", 100 - number) for number in range(30)]
    statistics = Statistics(**vars(_NONE) | {"event_types": types})
    card = dataset_card(manifest_of(folders["jsonl"]), statistics)
    assert f"| 10 other types | {sum(100 - number for number in range(20, 30))} |" in card


def test_excluded_sessions_are_counted_not_listed(folders: dict[str, Path]) -> None:
    manifest = manifest_of(folders["jsonl"])
    manifest["spec"]["filter"]["exclude_session_ids"] = ["ses_one", "ses_two"]
    assert '"exclude_session_ids": "2 sessions"' in dataset_card(manifest, _NONE)


def test_every_column_has_a_description() -> None:
    names = {name for kinds in SCHEMAS.values() for schema in kinds.values() for name in schema.names}
    assert names == set(COLUMNS) and all(COLUMNS.values())
