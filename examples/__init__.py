"""Recordings to try the service with, made by a seeded generator: see demo_workflows."""
