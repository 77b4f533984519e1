"""What a process of the service works with, put together once. Design §2."""

from dataclasses import dataclass

from recorder.settings import Settings
from recorder.storage.blobs import Blobs
from recorder.storage.database import Database
from recorder.storage.lake import Lake


@dataclass(frozen=True)
class Runtime:
    """The parts that operations take: handed to `api`, `pipelines` and the command line."""

    settings: Settings
    database: Database
    blobs: Blobs
    lake: Lake

    @classmethod
    def open(cls, settings: Settings) -> "Runtime":
        """Connect to what the settings name; the schema is brought up to date."""
        database = Database(settings.database_url)
        database.migrate()
        return cls(settings, database, Blobs(settings.blob_url), Lake(settings.lake_url))

    def close(self) -> None:
        """Give connections back."""
        self.database.close()
