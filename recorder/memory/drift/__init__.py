"""Drift of a memory graph: paths that stop, nodes that appear. Spec §6.1; contract §6, docs/drift.md.

Pure: `thresholds` computes baselines and limits, `history` holds the sessions in order, `alarm_rules` has
both rules, `detector` applies them. `store` reads and writes, `monitor` checks a live graph,
describes the alarms in events, and replays the past of a graph (backtest).
"""
