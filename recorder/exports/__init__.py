"""Exports of datasets: requests, plans, runs, destinations, results and verification. Spec §4.3."""
