"""Masking of recorded texts: policies, detectors, and scans in processes of their own. Contract §3, §8."""
