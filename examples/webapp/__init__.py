"""Example web application: the approval of an invoice as real pages, in variants. Standard library only."""
