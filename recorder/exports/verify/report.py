"""What a check of a dataset found. Contract §9 (`recorder verify`)."""

from dataclasses import dataclass, field

#: A dataset that is wholly wrong needs no line for each of its pictures.
_SENTENCES = 200


@dataclass
class VerifyReport:
    """What a check of a dataset found."""

    export_id: str
    manifest_sha256: str
    shards: int = 0
    #: Events, or the samples of a WebDataset.
    rows: int = 0
    frames: int = 0
    size_bytes: int = 0
    row_set_sha256: str = ""
    #: What is wrong, one sentence each; empty if all is well.
    problems: list[str] = field(default_factory=list)

    @property
    def is_valid(self) -> bool:
        """Whether files and manifest agree in everything."""
        return not self.problems

    def add(self, sentence: str) -> None:
        """Note what is wrong; after 200 sentences only that there is more."""
        if len(self.problems) < _SENTENCES:
            self.problems.append(sentence)
        elif len(self.problems) == _SENTENCES:
            self.problems.append("More is wrong; the list ends here.")
