"""A graph for people and other programs: figures, interchange formats, what is shown of it. Spec §4.2."""
