"""Checks before `recorder up` creates a data folder: checkout, ports, database server. Contract §9."""

from pathlib import Path

from recorder.errors import Conflict
from recorder.settings import Settings, extend_program_environment, find_data_folder
from recorder.storage.database import require_database_server
from recorder.supervisor.child_commands import choose_child_port, find_checkout_for_children
from recorder.supervisor.run_records import SERVICE, has_run_record

DAGSTER_HOST = "127.0.0.1"


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
    if not has_run_record(find_data_folder(data), SERVICE):
        choose_child_port(host, port, option="--port")
        if dagster_port is not None:
            find_checkout_for_children("pipelines")
            choose_child_port(DAGSTER_HOST, dagster_port, option="--dagster-port")
