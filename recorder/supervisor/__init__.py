"""What `recorder up` runs: API, delivery loop and Dagster as children, watched and stopped. Contract §9."""

from recorder.supervisor.service import Service, running, serve

__all__ = ["Service", "running", "serve"]
