"""Access: workspaces, API keys, rate limits, quotas, idempotency, login to Dagster. Spec §5."""
