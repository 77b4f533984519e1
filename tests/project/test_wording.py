"""Wording of docstrings, pages, errors and names: no hit of the rules, and rules that find what they name."""

from pathlib import Path

from tests.project.wording_rules import EXCEPTIONS, ROOT, find_hits, list_files


def test_matcher_flags_each_rule_and_leaves_code_and_look_up_alone(tmp_path: Path) -> None:
    package = tmp_path / "recorder"
    package.mkdir()
    (package / "sample.py").write_text(
        '"""Who\'s there."""\n'
        "class Bad(ValueError):\n"
        '    title = "The key stands no longer"\n'
        "def _(own):\n"
        '    """Return it.\n\n    Give\n    up `told`; look up, look-up, look.\n    """\n'
        "    for place, [one, *found] in own: raise Bad(f'No longer to {own} be had')\n"
    )
    (tmp_path / "README.md").write_text("It runs behind a reverse proxy.\n```\ntold\n```\nIt is behind.\n")
    hits = find_hits(tmp_path)
    assert [(hit.path, hit.line, hit.rule) for hit in hits] == [
        ("README.md", 5, "behind"),
        ("recorder/sample.py", 1, "opening"),
        ("recorder/sample.py", 3, "stand"),
        ("recorder/sample.py", 4, "_"),
        ("recorder/sample.py", 4, "name"),
        ("recorder/sample.py", 7, "give up"),
        ("recorder/sample.py", 8, "look"),
        ("recorder/sample.py", 10, "be had"),
        *[("recorder/sample.py", 10, "name")] * 3,
    ]
    assert find_hits(tmp_path, [Path("README.md")]) == hits[:1]


def test_functions_open_with_a_verb_classes_of_the_product_with_a_noun_and_no_name_is_dull(
    tmp_path: Path,
) -> None:
    for folder in ("recorder", "tests"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sample.py").write_text(
            'def size() -> int:\n    """Number of rows."""\n'
            'def has() -> bool:\n    """For each row, return whether it is set."""\n'
            'def stop() -> None:\n    """Stop, and wait."""\n'
            'class Rows:\n    """Rows."""\n    @property\n    def size(self) -> int:\n        """Number."""\n'
            "    def bare(self) -> None: ...\n"
            'class Keeper:\n    """Keeps rows."""\n'
            "# Read by nobody.\n"
            "def list_told(is_told: bool) -> None: ...\n"
            "DETAIL = '2 file(s)'\n"
        )
    assert [(hit.path, hit.line, hit.rule) for hit in find_hits(tmp_path)] == [
        ("recorder/sample.py", 2, "verb"),
        ("recorder/sample.py", 4, "verb"),
        ("recorder/sample.py", 14, "class"),
        ("recorder/sample.py", 15, "nobody"),
        *[("recorder/sample.py", 16, "name")] * 2,
        ("recorder/sample.py", 17, "plural"),
        ("tests/sample.py", 2, "verb"),
        ("tests/sample.py", 4, "verb"),
    ]


def test_docstrings_docs_errors_and_names_follow_the_wording_rules() -> None:
    hits = find_hits(ROOT)
    assert not hits, f"{len(hits)} hits\n" + "\n".join(map(str, hits[:40]))


def test_each_exception_has_a_line_and_a_reason() -> None:
    lines = {line.strip() for path in list_files(ROOT) for line in path.read_text().splitlines()}
    assert not [line for line, reason in EXCEPTIONS.items() if line not in lines or not reason.strip()]
