"""Errors of backup and restore; each is one sentence for the operator."""

from collections.abc import Sequence
from pathlib import Path

from recorder.errors import Conflict, Invalid, NotFound, RecorderError, Unavailable

_IDS_SHOWN = 10
_REASON_CHARACTERS = 200


class NoBackup(NotFound):
    """The folder or store holds no complete backup, or none with the id that was given."""

    def __init__(self, where: str, ids: Sequence[str] = ()) -> None:
        """Create the error.

        Args:
            where: the folder or store.
            ids: the complete backups there, newest first, where one was named that is not among them.
        """
        detail = (
            f"There is no complete backup in {where}. Check the address; a backup that was interrupted "
            "does not count."
        )
        if ids:
            more = f" and {len(ids) - _IDS_SHOWN} older ones" if len(ids) > _IDS_SHOWN else ""
            detail = (
                f"No backup in {where} has this id; it holds {', '.join(ids[:_IDS_SHOWN])}{more}. "
                "Choose one of them with --backup, or leave that out for the newest."
            )
        super().__init__("backup", detail)


class BackupStoreUnusable(Unavailable):
    """The folder or store of backups refuses or does not answer."""

    def __init__(self, where: str, cause: BaseException) -> None:
        reason = (isinstance(cause, OSError) and cause.strerror) or f"{type(cause).__name__}: {cause}"
        RecorderError.__init__(
            self,
            f"The store of the backups, {where}, cannot be used ({reason[:_REASON_CHARACTERS]}). "
            "Check the address, and that this user may read and write there.",
        )


class BackupsAway(Unavailable):
    """The folder or store in which backups were made holds none."""

    def __init__(self, where: str) -> None:
        RecorderError.__init__(
            self,
            f"No backup is left in {where}, where backups of this deployment were made: a volume may not be "
            "mounted. Mount it. If all of them were deleted on purpose, add --start-over.",
        )


class TargetInsideDeployment(Invalid):
    """The folder for backups is inside a folder that the backup protects."""

    def __init__(self, where: str, inside: str) -> None:
        super().__init__(
            f"{where} is inside {inside}, which the backup protects, and would be lost with it. Nothing was "
            "written. Choose a folder elsewhere, best on another disk."
        )


class DamagedBackup(Conflict):
    """A part of the backup is missing, or is not what was written."""

    code = "damaged_backup"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"The backup is damaged: {what}. Nothing was written. Choose an older backup with --backup."
        )


class OldBackupDamaged(Conflict):
    """A backup was made, and parts that no backup needs could not be deleted: an older one is damaged."""

    code = "damaged_backup"

    def __init__(self, manifest: str) -> None:
        super().__init__(
            f"The new backup is complete. An older one is damaged, so parts that no backup needs were not "
            f"deleted. If you can do without it, delete its manifest {manifest}."
        )


class DatabaseNotCopied(Unavailable):
    """The database could not be copied to the folder in which backups work."""

    def __init__(self, folder: Path, cause: Exception) -> None:
        RecorderError.__init__(
            self,
            f"The database cannot be copied to {folder} ({cause}). Free space there for one copy of it, and "
            "run the backup again.",
        )


class WrongSecret(Conflict):
    """The secret is not that of the deployment that was backed up."""

    code = "wrong_secret"

    def __init__(self) -> None:
        super().__init__(
            "The secret is not that of the deployment that was backed up. Nothing was written. Set "
            "RECORDER_SECRET, or --secret-file, to the secret that the deployment had."
        )


class NoSecret(Invalid):
    """A restore needs the deployment's secret, which no backup holds."""

    code = "no_secret"

    def __init__(self) -> None:
        super().__init__(
            "A backup holds no secret. Set RECORDER_SECRET to the secret of the deployment, or name the file "
            "with it by --secret-file."
        )


class NotEmpty(Conflict):
    """The location to restore into holds something."""

    code = "not_empty"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not empty. Nothing was written. Restore into an empty one.")


class RestoreBusy(Conflict):
    """Another restore to the same data folder is at work."""

    code = "restore_busy"

    def __init__(self, data: Path, staged: Path) -> None:
        super().__init__(
            f"Another restore to {data} is at work in {staged}. Wait until it ends, or choose another folder."
        )


class RestoreTargetUnusable(Unavailable):
    """The folder to restore into cannot be created or written."""

    def __init__(self, data: Path, error: OSError) -> None:
        RecorderError.__init__(
            self,
            f"Nothing was restored: {data} cannot be written ({error.strerror}). Free some space there, or "
            "choose a folder that this user may create.",
        )


class OtherEngine(Conflict):
    """The backup was taken from another kind of database."""

    code = "other_engine"

    def __init__(self, engine: str) -> None:
        super().__init__(
            f"The backup is of a {engine} database. Nothing was written. Set RECORDER_DATABASE_URL to an "
            f"empty {engine} database."
        )


class OtherDeployment(Conflict):
    """The folder or store holds backups of another deployment."""

    code = "other_deployment"

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} holds backups of another deployment, or of one with another secret. Choose an empty "
            "folder or prefix."
        )


class BackupBusy(Conflict):
    """Another backup of this deployment is at work."""

    code = "backup_busy"

    def __init__(self) -> None:
        super().__init__("Another backup of this deployment is at work. Wait until it ends.")


class PartsRemoved(Conflict):
    """Parts of a backup were removed while it was made."""

    code = "parts_removed"

    def __init__(self, where: str) -> None:
        super().__init__(
            f"Parts of this backup were removed from {where} while it was made, so there is no new backup. "
            "Keep other programs from that folder, and run it again."
        )


class AuditDoesNotFit(Conflict):
    """The audit file does not continue the chains of the backup."""

    code = "audit_does_not_fit"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"The audit file cannot be applied: {why}. Nothing was written. Export it again with "
            "`recorder audit export`."
        )
