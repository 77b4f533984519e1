"""Limits of requests and of open streams, in one process or across all that share a Redis. Spec §8.1."""
