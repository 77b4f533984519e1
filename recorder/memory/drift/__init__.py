"""Drift of a memory graph: paths, nodes and edges that stop, drop, appear or grow. Spec §6.1; contract §6.

Pure: `drift_subjects` and `history` hold the sessions as columns; `baseline_terms`, `thresholds` and
`watched_subjects` hold what is expected; `fall_evidence` and `falls` find falls, `growth` finds
growth; `changes` orders changes, `explained_changes` drops those that another change explains; `detector`
applies all. `store` reads and writes, `monitor` checks stored graphs, `payloads` describes alarms in events,
`backtest` replays the past of a graph.
"""
