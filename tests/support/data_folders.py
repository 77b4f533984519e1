"""Files of a data folder, compared with the inventory of all holdings of recorded content."""

from fnmatch import fnmatchcase
from pathlib import Path

from recorder.governance import content_inventory


def group_files_by_holding(folder: Path, *, local_exports: str | None = None) -> dict[str, set[str]]:
    """Return the files of a data folder by the holding of the inventory that they belong to.

    Files without content are listed under an empty name.

    Args:
        folder: the data folder.
        local_exports: pattern of the operator's folder of local exports, if it is in the data folder.

    Raises:
        AssertionError: if a file belongs to no holding, or to several.
    """
    lake = {f"lake {holding.name}": holding.files for holding in content_inventory.LAKE}
    others = (*content_inventory.OBJECTS, *content_inventory.OTHER_HOLDINGS)
    listed = lake | {holding.name: holding.files for holding in others}
    patterns = {pattern: name for name, files in listed.items() for pattern in files}
    patterns |= dict.fromkeys(content_inventory.FILES_WITHOUT_CONTENT, "")
    if local_exports is not None:
        patterns[local_exports] = "local exports"
    files_of: dict[str, set[str]] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_dir():
            continue
        matching = [holding for pattern, holding in patterns.items() if fnmatchcase(name, pattern)]
        assert len(matching) == 1, f"{name} belongs to {len(matching)} holdings: {matching}"
        files_of.setdefault(matching[0], set()).add(name)
    return files_of
