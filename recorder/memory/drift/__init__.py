"""Drift of a memory graph: paths, nodes and edges that stop, drop, appear or grow. Spec §6.1; contract §6.

Pure: `subjects` and `history` hold the sessions as columns, `terms`, `thresholds` and `watches` say what is
expected, `trail` and `disappearance` find falls, `appearance` growth, `changes` and `consequences` report
each change once, `detector` applies all. `store` reads and writes, `monitor` checks live graphs,
`payloads` describes alarms in events, `backtest` replays the past of a graph.
"""
