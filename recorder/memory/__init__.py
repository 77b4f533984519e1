"""Memory graph of a workflow: steps, nodes, paths, queries, drift and drawings. Spec §2.6, §4.2."""
