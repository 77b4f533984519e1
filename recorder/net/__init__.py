"""Outbound calls to addresses that tenants choose: the guard, and the client that uses it. Contract §6."""
