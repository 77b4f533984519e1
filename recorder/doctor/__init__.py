"""Checks of a deployment for its operator."""
