"""Errors of backup and restore; each is one sentence for the operator."""

from recorder.errors import Conflict, Invalid, NotFound


class NoBackup(NotFound):
    """The folder or store holds no complete backup."""

    def __init__(self, where: str) -> None:
        super().__init__(
            "backup",
            f"There is no complete backup in {where}. Check the address; a backup that was interrupted "
            "does not count.",
        )


class DamagedBackup(Conflict):
    """A part of the backup is missing, or is not what was written."""

    code = "damaged_backup"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"The backup is damaged: {what}. Nothing was written. Choose an older backup with --backup."
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
    """The place to restore into holds something."""

    code = "not_empty"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not empty. Nothing was written. Restore into an empty one.")


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


class AuditDoesNotFit(Conflict):
    """The audit file does not continue the chains of the backup."""

    code = "audit_does_not_fit"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"The audit file cannot be applied: {why}. Nothing was written. Export it again with "
            "`recorder audit export`."
        )
