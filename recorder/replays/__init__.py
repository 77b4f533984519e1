"""Replays of recorded sessions: the rules, without database, browser, network and clock. Spec §4.6."""
