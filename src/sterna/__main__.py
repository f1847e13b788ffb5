"""`python -m sterna` is the command `sterna`."""

from sterna.cli import main

main()
