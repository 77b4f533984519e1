"""Webhooks: outbox, delivery attempts, delivery loop, signatures. Spec §6; contract §6."""
