"""Runtime of a process: settings, database, blobs and lake. Design §2."""

from dataclasses import dataclass

from recorder.settings import Settings
from recorder.storage.blobs import Blobs
from recorder.storage.database import Database, open_database
from recorder.storage.deployment import check_deployment_record, check_deployment_secret
from recorder.storage.durable_files import keep_files_private
from recorder.storage.known_content import require_known_content
from recorder.storage.lake import Lake
from recorder.storage.store_regions import check_store_addresses, check_store_regions


@dataclass(frozen=True)
class Runtime:
    """Parts that operations take; `api`, `pipelines` and the command line open one."""

    settings: Settings
    database: Database
    blobs: Blobs
    lake: Lake

    @classmethod
    def open(cls, settings: Settings, *, create: bool = True) -> "Runtime":
        """Connect to what the settings name; the files that this process creates are private from now on.

        Args:
            settings: the deployment.
            create: create the schema in an empty database, and mark new stores.

        Raises:
            NoDeployment: if the database is empty and `create` is False.
            UnknownSchema: if the database was created by another release.
            UnknownRegion, WrongRegion: if the stores are not of the deployment's region.
            OtherSecret: if the secret is not the deployment's.
            StoreContentMissing: if a new store would be marked whose content the database lists.
            DatabaseUnusable: if the database does not answer.
            StoreUnusable: if the address of a store is wrong.
        """
        keep_files_private()
        check_store_addresses(settings)
        database = open_database(settings, create=create)
        blobs, lake = Blobs(settings.blob_url, archive_url=settings.cold_url), Lake(settings.lake_url)
        try:
            check_deployment_record(settings, database)
            check_deployment_secret(settings, database, store=create)
            if create:
                require_known_content(settings, database)
            check_store_regions(settings, blobs, lake, marks_new=create)
        except BaseException:
            database.close()
            raise
        return cls(settings, database, blobs, lake)

    def close(self) -> None:
        """Close the connections."""
        self.database.close()
