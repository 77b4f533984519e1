"""Links, indexes and decision records hold together."""

import re
from pathlib import Path

import pytest

from tests.support.project_texts import DOCS, PAGES, ROOT, SOURCES, prose

DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
PROSE = [
    *(ROOT / name for name in ("README.md", "GLOSSARY.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(DOCS.rglob("*.md")),
]


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    text = prose(page.read_text())
    broken = []
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_leads_to_every_page() -> None:
    index = PAGES["docs/README.md"]
    assert [name for name in PAGES if f"]({Path(name).name})" not in index and name != "docs/README.md"] == []


def test_every_decision_stands_in_the_index_under_its_title() -> None:
    index = (DOCS / "decisions" / "README.md").read_text()
    titles = [page.read_text().partition("\n")[0].removeprefix("# ") for page in DECISIONS]
    rows = [
        f"| [{title[:4]}]({page.name}) | {title[5:]} |" for page, title in zip(DECISIONS, titles, strict=True)
    ]
    assert len(DECISIONS) >= 11
    assert [row for row in rows if row not in index] == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_five_parts_and_fits_on_a_screen(page: Path) -> None:
    text = page.read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == ["Context", "Decision", "Consequences", "Alternatives", "References"]
    assert len(text.splitlines()) <= 40


def test_the_files_that_decisions_refer_to_are_there() -> None:
    named = {
        name
        for page in DECISIONS
        for name in re.findall(r"`((?:recorder|api|pipelines)/[\w/.]+)`", page.read_text())
    }
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_pages_that_the_code_refers_to_are_there() -> None:
    named = {name for path in SOURCES for name in re.findall(r"docs/[\w/-]+\.md", path.read_text())}
    assert "docs/decisions/0002-group-commit.md" in named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
