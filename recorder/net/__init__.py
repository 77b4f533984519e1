"""Calls to addresses that somebody else chose: the guard, and the one client behind it. Contract §6."""
