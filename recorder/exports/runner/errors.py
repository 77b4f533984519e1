"""Why a run of an export gives up, for good or to the next run. Spec §3.2."""

from recorder.errors import RecorderError, Unavailable

#: So many runs in a row may end without having brought an export on; then it fails.
MAX_ATTEMPTS = 10


class AttemptsExhausted(RecorderError):
    """Run after run did not bring the export on."""

    code = "attempts_exhausted"
    title = "Attempts exhausted"

    def __init__(self, last_error: str | None) -> None:
        cause = f" The last one said: {last_error}" if last_error else ""
        super().__init__(f"{MAX_ATTEMPTS} runs in a row brought this export no further.{cause}")


class FilesMissing(RecorderError):
    """Somebody takes the files away while they are written."""

    code = "files_missing"
    title = "Files missing"

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} file(s) were written to the destination and are not there any more.")


class DeletionGoesOn(Unavailable):
    """Sessions are deleted whenever the export is about to be completed; the next run goes on."""

    def __init__(self) -> None:
        text = (
            "Sessions of the export are deleted whenever it is about to be completed; the next run goes on."
        )
        RecorderError.__init__(self, text)
