"""Storage: database, lake, blob store, leases and migrations. Design §3."""
