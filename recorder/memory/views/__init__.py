"""Views of a memory graph: figures, drawings and interchange formats. Spec §4.2."""
