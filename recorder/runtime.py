"""What a process of the service works with, put together once. Design §2."""

from dataclasses import dataclass

from recorder.settings import Settings
from recorder.storage.blobs import Blobs
from recorder.storage.database import Database
from recorder.storage.lake import Lake
from recorder.storage.regions import check_region


@dataclass(frozen=True)
class Runtime:
    """The parts that operations take: handed to `api`, `pipelines` and the command line."""

    settings: Settings
    database: Database
    blobs: Blobs
    lake: Lake

    @classmethod
    def open(cls, settings: Settings) -> "Runtime":
        """Connect to what the settings name; the schema is brought up to date.

        Raises:
            UnknownRegion, WrongRegion: if the stores are not of the deployment's region.
            Unavailable: if the database does not answer.
        """
        database = Database(settings.database_url)
        blobs, lake = Blobs(settings.blob_url), Lake(settings.lake_url)
        try:
            database.migrate()
            check_region(settings, database, blobs, lake)
        except BaseException:
            database.close()
            raise
        return cls(settings, database, blobs, lake)

    def close(self) -> None:
        """Give connections back."""
        self.database.close()
