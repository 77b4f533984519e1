"""Errors of reading a dataset; each message says what to do."""

from typing import Literal

from recorder.errors import RecorderError
from recorder.number_formats import format_count

_WHY_FILE_IS_GONE = {
    "service": "is no longer at the service, which keeps hosted files for 30 days and removes a file whose "
    "sessions were all purged. Open the manifest again; if it is gone too, export again.",
    "folder": "does not exist in the dataset's folder. Copy or download the dataset again; if its sessions "
    "were purged, a new manifest no longer lists the file.",
    "store": "does not exist in the dataset's store. Copy the file there again, or export again.",
}


class DatasetUnreadable(Exception):
    """A file does not follow its format; the message completes a sentence that starts with the path."""


class ManifestUnreadable(RecorderError):
    """There is no manifest at this address, or not one of this service."""

    code = "manifest_unreadable"
    title = "Manifest unreadable"

    def __init__(self, detail: str = "", *, where: str = "there", answer: str = "") -> None:
        text = f"No manifest can be read {where}; give its path, its folder or its signed address."
        if detail:
            text += f" The file at this location was not written by this service: {detail}."
        if answer:
            text += f" The service answered {answer}."
        super().__init__(text)


class ManifestRefused(RecorderError):
    """A manifest that is readable and unsafe to follow.

    Attributes:
        reason: end of a sentence that starts with the path of the file that is refused.
    """

    code = "manifest_refused"
    title = "Manifest refused"

    def __init__(self, why: str, *, reason: str = "is refused") -> None:
        self.reason = reason
        super().__init__(f"The manifest is refused: {why}")


class FileDamaged(RecorderError):
    """A file has other bytes than its manifest lists."""

    code = "file_damaged"
    title = "File damaged"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} has other bytes than the manifest lists; nothing of it was kept. Try again. If the "
            "error stays, check the dataset with: recorder verify."
        )


class FileGone(RecorderError):
    """A file of the manifest does not exist.

    Args:
        path: path of the file below the manifest's folder.
        source: location from which the dataset is read.
    """

    code = "file_gone"
    title = "File gone"

    def __init__(self, path: str, source: Literal["service", "folder", "store"]) -> None:
        super().__init__(f"{path} {_WHY_FILE_IS_GONE[source]}")


class AddressExpired(RecorderError):
    """The signed addresses of a hosted dataset have expired, and its manifest gives no new ones."""

    code = "address_expired"
    title = "Address expired"

    def __init__(self, export_id: str) -> None:
        super().__init__(
            f"The signed addresses of {export_id} have expired. Files fetched so far are kept: read a new "
            f"manifest_url from GET /v1/exports/{export_id} and open that, or open the address of the "
            "manifest with an API key, which renews signed addresses by itself."
        )


class DatasetChanged(RecorderError):
    """The dataset was rewritten after it was opened."""

    code = "dataset_changed"
    title = "Dataset changed"

    def __init__(self) -> None:
        super().__init__(
            "The dataset was rewritten after it was opened (something was erased). Open it again."
        )


class UnlistedFiles(RecorderError):
    """A folder for a download has files that no manifest lists and that would be read as its rows."""

    code = "unlisted_files"
    title = "Unlisted files"

    def __init__(self, folder: str, paths: list[str]) -> None:
        more = f" and {format_count(len(paths) - 1, 'other file')}" if len(paths) > 1 else ""
        super().__init__(
            f"The folder {folder} has {paths[0]!a}{more}, which no manifest there lists, and tools "
            "would read their rows with those of the dataset. Remove these files, or use another folder."
        )


class NotInDataset(RecorderError):
    """A kind or split that this dataset does not have, or a form that it cannot take."""

    code = "not_in_dataset"
    title = "Not in this dataset"


class LibraryMissing(RecorderError):
    """A library that this form needs is not installed."""

    code = "library_missing"
    title = "Library missing"

    def __init__(self, name: str) -> None:
        super().__init__(f"This needs the library {name}: pip install {name}")


class StateRefused(RecorderError):
    """A saved position that does not belong to this stream of rows."""

    code = "state_refused"
    title = "State refused"
