"""Checks before `recorder up` creates a data folder: checkout, ports, database server. Contract §9."""

from pathlib import Path

from recorder.errors import Conflict
from recorder.settings import Settings, extend_program_environment, find_data_folder
from recorder.shell_commands import shorten_path
from recorder.storage.database import require_database_server
from recorder.supervisor.child_commands import choose_child_port, find_checkout_for_children
from recorder.supervisor.run_records import SERVICE, has_run_record

DAGSTER_HOST = "127.0.0.1"
#: Names that show a deployment, and others that it has. Alone the others are of an interrupted start, or of a
#: deployment whose database and stores are elsewhere.
_OF_DEPLOYMENT = frozenset({"blobs", "lake", "recorder.db", "secret"})
_BESIDE_DEPLOYMENT = frozenset(
    {"backups.json", "cold", "dagster", "dagster-login", "datasets", "exports", "key", "logs", "run", "tmp"}
)


class FolderOfOthers(Conflict):
    """The data folder holds files, and no deployment."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{shorten_path(folder)} holds other files, so no deployment is created there. Name a new or an "
            "empty folder with --data."
        )


class PortTwice(Conflict):
    """The API and Dagster's pages are to listen on one port."""

    def __init__(self, port: int) -> None:
        super().__init__(
            f"The API and Dagster's pages cannot both listen on port {port}. Give them different ports with "
            "--port and --dagster-port."
        )


def check_start(data: Path | None, host: str, port: int, dagster_port: int | None) -> None:
    """Check what a start needs, and create nothing.

    The ports of a folder with a record are left to `Service`: another service may run on it, and processes of
    a killed one may hold them.

    Args:
        data: the data folder; None takes the environment's.
        host: address that the API is to listen on.
        port: port of the API; 0 takes a free one.
        dagster_port: port of Dagster's pages; None without Dagster.

    Raises:
        NoCheckout: if only the library is installed.
        FolderOfOthers: if the folder holds files, and no deployment.
        InvalidSetting: if a setting cannot be read.
        CannotListen: if a port is taken.
        PortTwice: if both ports are the same.
        DatabaseUnusable: if no database answers at the address that the settings name.
    """
    find_checkout_for_children("api")
    if port == dagster_port != 0:
        raise PortTwice(port)
    # A secret of the environment is not stored, so no folder is created for it.
    environment = extend_program_environment({"RECORDER_SECRET": "none"})
    require_database_server(Settings.from_env(environment, data_dir=data, create=False))
    folder = find_data_folder(data)
    if folder.is_dir() and not _may_hold_deployment(folder):
        raise FolderOfOthers(folder)
    if not has_run_record(folder, SERVICE):
        choose_child_port(host, port, option="--port")
        if dagster_port is not None:
            find_checkout_for_children("pipelines")
            choose_child_port(DAGSTER_HOST, dagster_port, option="--dagster-port")


def _may_hold_deployment(folder: Path) -> bool:
    """Return whether a folder is empty or holds only what is of deployments; True if it cannot be read."""
    # A volume may hold `lost+found`, a desktop leaves hidden files, and the demo has a folder of its own.
    try:
        names = {
            path.name
            for path in folder.iterdir()
            if not path.name.startswith(".") and path.name != "lost+found" and not _has_deployment(path)
        }
        return names <= _BESIDE_DEPLOYMENT or _has_deployment(folder)
    except PermissionError:
        return True  # what cannot be read or written is reported by the start itself


def _has_deployment(folder: Path) -> bool:
    """Return whether a folder holds the data of a deployment."""
    return any(Path(folder, name).exists() for name in _OF_DEPLOYMENT)
