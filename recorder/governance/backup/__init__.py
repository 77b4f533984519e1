"""Backup and restore of a deployment while it runs. Contract §7, §9; docs/decisions/0040-backups.md."""
