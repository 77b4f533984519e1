"""Memory graph: sessions into nodes, variants and paths; pure computation. Spec §2.6."""
