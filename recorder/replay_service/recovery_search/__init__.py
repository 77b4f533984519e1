"""Recoveries: candidates of a failed session, and the attempts on them. Spec §4.6, contract §8."""
