"""The program `sterna`, which is also `python -m sterna`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still imported ends it as later on."""
    try:
        from sterna.cli import finish
        from sterna.cli import main as command

        try:
            command()
        finally:
            finish()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
