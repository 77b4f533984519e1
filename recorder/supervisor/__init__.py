"""Supervisor of `recorder up`: API, delivery loop and Dagster as child processes. Contract §9."""

from recorder.supervisor.service import Service, run_service, serve_deployment

__all__ = ["Service", "run_service", "serve_deployment"]
