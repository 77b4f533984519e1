"""Names inside an export's directory. Contract §5."""

#: Written last: its presence says that the dataset is whole.
MANIFEST = "manifest.json"
#: The dataset card.
CARD = "README.md"
