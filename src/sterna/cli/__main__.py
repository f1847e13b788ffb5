"""`python -m sterna.cli`: the command line without the installed script."""

from sterna.cli import main

if __name__ == "__main__":
    main()
