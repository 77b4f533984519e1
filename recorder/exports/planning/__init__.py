"""What an export will hold, fixed before its first file is written. Design §4 (exports)."""
