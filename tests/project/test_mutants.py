"""The list of `make mutation` fits the code: each mutant's text is exactly once in its file."""

from tests.mutation.__main__ import ROOT, find_stale, read_mutants


def test_every_mutant_is_found_in_its_file() -> None:
    mutants = read_mutants()
    assert len(mutants) >= 70
    assert find_stale(mutants, ROOT) == []
    names = [mutant.name for mutant in mutants]
    assert len(set(names)) == len(names)
    for mutant in mutants:
        for test in mutant.tests:
            file, _, function = test.partition("::")
            if file.startswith("tests/"):
                assert function.partition("[")[0] in (ROOT / file).read_text(), f"{mutant.name}: no {test}"
