"""``python -m whimbrel``: runs the command line if the script is not on the path."""

from whimbrel.cli import main

if __name__ == "__main__":
    main()
