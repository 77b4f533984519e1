"""Capture of what happens in a browser: pages read as snapshots, actions with their targets. Spec §4.1."""
