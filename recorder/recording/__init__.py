"""Recording: sessions, events, frames, tags, outcomes and their streams. Spec §4.1."""
