"""The dataset card, README.md: what Hugging Face `datasets` reads, and a page for people. Design §1."""

from typing import Any

from recorder.exports.card.front_matter import front_matter
from recorder.exports.card.page import page
from recorder.exports.card.statistics import Statistics


def dataset_card(manifest: dict[str, Any], statistics: Statistics) -> str:
    """The card of a dataset. What clients wrote, such as the tag, cannot change what it is read as."""
    return "\n".join([*front_matter(manifest), "", *page(manifest, statistics), ""])
