"""Asking for exports: requests, recipes, and the object that clients see. Spec §2.5, §4.3."""
