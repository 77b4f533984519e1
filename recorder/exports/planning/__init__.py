"""Plans of exports: sessions and shards, fixed before the first file is written. Design §4 (exports)."""
