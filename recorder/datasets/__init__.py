"""Files of a dataset: formats, manifest, sources to read from; one module per format. Spec §4.3."""
