"""Drift of a memory graph: paths that stop, nodes that appear. Spec §6.1; contract §6, docs/drift.md.

Pure: `rules` has the arithmetic, `history` the sessions in order, `terms` what they are compared with,
`disappeared` and `appeared` a rule each, `looking` applies both. Around them: `reading` and `store` read and
write, `events` puts alarms into words, `watching` is a look at a live graph, `backtest` at its past.
"""
