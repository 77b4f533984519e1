"""Memory queries of the service: those that read sessions, alarms and events beside the graph. Spec §4.2."""
