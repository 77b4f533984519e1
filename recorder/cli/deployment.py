"""The deployment that a command works on, beside a running service or without one. Contract §9."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import typer
from sqlmodel import Session as DbSession

from recorder.access.workspaces import find_workspace, list_workspaces
from recorder.runtime import Runtime
from recorder.settings import Settings


@contextmanager
def opened(data: Path | None, *, create: bool = False, is_reslotting: bool = False) -> Iterator[Runtime]:
    """Open the parts of the deployment in this data folder, or in the environment's.

    Args:
        data: the data folder.
        create: create the deployment where there is none.
        is_reslotting: whatever RECORDER_SEAL_SLOTS says, since the number of slots is about to change.

    Raises:
        NoDeployment: if there is none and none is to be created; nothing is created then.
    """
    settings = Settings.from_env(data_dir=data, create=create)
    if is_reslotting:
        settings = replace(settings, seal_slots=None)
    runtime = Runtime.open(settings, create=create)
    try:
        yield runtime
    finally:
        runtime.close()


def print_folder(runtime: Runtime) -> None:
    """Print on stderr which data folder a command worked on."""
    typer.echo(f"Data folder: {runtime.settings.data_dir}", err=True)


def workspace_id_of(db: DbSession, workspace: str | None) -> str:
    """The workspace that a command names by name or id, or the only one there is.

    Raises:
        NotFound: if there is none of this name.
        BadParameter: if none is named and there is not exactly one.
    """
    if workspace is not None:
        return find_workspace(db, workspace).id
    found = list_workspaces(db)
    if len(found) != 1:
        raise typer.BadParameter(
            f"there are {len(found)} workspaces; name one (`recorder workspaces list` shows them)",
            param_hint="--workspace",
        )
    return found[0].id
