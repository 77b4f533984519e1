"""Importers of recordings made elsewhere: XES event logs and MiniWoB++ demonstrations. Design §2."""
