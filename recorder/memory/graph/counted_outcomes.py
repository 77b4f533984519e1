"""Outcomes of sessions that a memory graph counts, each by its index."""

#: Sessions with another outcome or none are in no count.
OUTCOMES = ("success", "error", "abandoned")
SUCCESS = OUTCOMES.index("success")
