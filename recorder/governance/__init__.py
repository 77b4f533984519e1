"""Governance: legal holds, purges, retention and erasure of recorded data. Spec §8.3; contract §2, §7."""
