"""Replayability: the share of the steps of a sealed session that replay. Spec §4.6, decision 0044."""
