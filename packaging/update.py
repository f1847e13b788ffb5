"""Writes the version and the SHA-256 of a source distribution into the recipes of this folder.

python packaging/update.py dist/sterna-0.1.0.tar.gz
"""

from __future__ import annotations

import argparse
import hashlib
import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
RECIPES = ("conda/recipe.yaml", "homebrew/sterna.rb")


def updated(recipe: str, version: str, digest: str) -> str:
    """Return a recipe with another version and digest."""
    recipe = re.sub(r'(?<=  version: ")[^"$]+|(?<=/sterna-)\d[^"$]*(?=\.tar\.gz)', version, recipe)
    return re.sub(r"\b[0-9a-f]{64}\b", digest, recipe)


def main() -> None:
    """Update both recipes in place."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sdist", type=Path)
    sdist = parser.parse_args().sdist
    version = sdist.name.removeprefix("sterna-").removesuffix(".tar.gz")
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    for name in RECIPES:
        path = FOLDER / name
        path.write_text(updated(path.read_text(), version, digest))


if __name__ == "__main__":
    main()
