"""Exports: how fast files are made, in how much memory, and how that compares with others' writers."""
