"""Files of a data folder, compared with the product's list of all places that hold recorded content."""

from fnmatch import fnmatchcase
from pathlib import Path

from recorder.governance import content_inventory


def name_places(folder: Path, *, local_exports: str | None = None) -> dict[str, set[str]]:
    """Return the places of the product's list that have files in a data folder, with these files.

    Files without content are listed under an empty name.

    Args:
        folder: the data folder.
        local_exports: pattern of the operator's folder of local exports, if it is in the data folder.

    Raises:
        AssertionError: if a file is at no place of the list, or at several.
    """
    lake = {f"lake {holding.name}": holding.files for holding in content_inventory.LAKE}
    others = (*content_inventory.OBJECTS, *content_inventory.PLACES)
    listed = lake | {holding.name: holding.files for holding in others}
    patterns = {pattern: name for name, files in listed.items() for pattern in files}
    patterns |= dict.fromkeys(content_inventory.FILES_WITHOUT_CONTENT, "")
    if local_exports is not None:
        patterns[local_exports] = "local exports"
    places: dict[str, set[str]] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_dir():
            continue
        matching = [holding for pattern, holding in patterns.items() if fnmatchcase(name, pattern)]
        assert len(matching) == 1, f"{name} is at {len(matching)} places of the list: {matching}"
        places.setdefault(matching[0], set()).add(name)
    return places
