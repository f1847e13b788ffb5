"""The program `sterna`, which is also `python -m sterna`."""

import gc
import sys

#: Objects between two looks of the garbage collector at young ones, 700 by default. A start makes
#: 100,000 that stay, at which it would look in vain for 10 ms.
YOUNG = 50_000


def main() -> None:
    """Run the command line; Ctrl-C while it is still imported ends it as later on."""
    gc.set_threshold(YOUNG)
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
