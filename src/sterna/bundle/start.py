"""The __main__.py of a bundle. Old versions of Python must be able to read it, to refuse."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(sys.argv[0] + ": needs Python 3.11 or later, but this is " + sys.version.split()[0])

import bundle_file  # type: ignore[import-not-found]  # it lies next to this in the archive

bundle_file.start(sys.argv)
