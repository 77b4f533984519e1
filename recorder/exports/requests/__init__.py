"""Requests for exports: validation, queue, recipes, and the wire object. Spec §2.5, §4.3."""
