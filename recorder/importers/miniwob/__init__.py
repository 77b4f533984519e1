"""Importer of human demonstrations of the MiniWoB++ web tasks. Design §2 (importers)."""
