"""Wire objects and table rows, one file per resource."""
