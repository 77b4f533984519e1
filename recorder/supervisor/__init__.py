"""What `recorder up` runs: the API and Dagster as children, watched and stopped cleanly. Contract §9."""

from recorder.supervisor.service import Service, running, serve

__all__ = ["Service", "running", "serve"]
