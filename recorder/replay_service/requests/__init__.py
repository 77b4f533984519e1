"""Replays and recoveries as clients ask for them: rows, checks, inputs, answers. Spec §4.6, contract §8."""
