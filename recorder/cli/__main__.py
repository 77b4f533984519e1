"""`python -m recorder.cli` is `recorder`."""

from recorder.cli import main

if __name__ == "__main__":
    main()
