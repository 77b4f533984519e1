"""An export from claim to end: a run, its ledger and lease, and how it fails. Design §3 (exports)."""
