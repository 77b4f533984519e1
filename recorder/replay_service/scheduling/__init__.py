"""Turns of workspaces in a replay drain run, and what takes long or waits in it. Design §3."""
