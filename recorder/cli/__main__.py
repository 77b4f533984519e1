"""`python -m recorder.cli` is `recorder`."""

from recorder.cli import main

main()
