"""The corpus of `train_nano.py`: Python's own standard library, and other sources.

A fifth of the standard library's files is held out (`sterna.evaluate.perplexity`). A file from
elsewhere is left out if it shares more than a few lines, or a few consecutive ones, with the
held-out files, so that training sees no copy of the test data.
"""

from __future__ import annotations

import email
import hashlib
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from sterna.evaluate.perplexity import is_held_out, stdlib_sources

#: Parts of paths that are other projects' code, or data in the shape of code.
LEFT_OUT = frozenset({"test", "tests", "testing", "_vendor", "vendor", "vendored", "externals",
                      "locale", "locales", "node_modules"})  # fmt: skip
SMALLEST, LARGEST = 400, 150_000  # bytes of a file
PER_PACKAGE = 1_200_000  # bytes: no single project's habits prevail
SHARED = 0.03  # at most this share of a file's telling lines may be lines of held-out files
TELLING = 25  # characters; shorter lines occur everywhere
RUN = 4  # consecutive telling lines: that many are no coincidence


class Corpus(NamedTuple):
    """Texts of the standard library, of its held-out files, and of other sources.

    digest: SHA-256 over the paths and bytes of everything trained on. dropped: number of files left
    out because they share lines with held-out ones. projects: licences of the other sources.
    """

    stdlib: list[str]
    held: list[str]
    others: list[str]
    digest: str
    dropped: int
    projects: dict[str, str]


def read_corpus(limit: int | None = None, also: Iterable[Path] = ()) -> Corpus:
    """Read the corpus.

    limit: how many files of the standard library to read, from the first on. also: folders with one
    folder for each project, `name-version`; or the standard library's `test`.
    """
    stdlib, held, digest = [], [], hashlib.sha256()
    for relative, path in stdlib_sources()[:limit]:
        data = path.read_bytes()
        text = data.decode("utf-8", errors="replace")
        if is_held_out(relative):
            held.append(text)
        else:
            stdlib.append(text)
            digest.update(relative.encode() + b"\0" + data + b"\0")
    forbidden = Forbidden.of(held)
    seen = {hashlib.sha256(text.encode()).digest() for text in stdlib}
    others, dropped, projects = [], 0, {}
    for project, relative, data in _others(also):
        text = data.decode("utf-8", errors="replace")
        name = hashlib.sha256(text.encode()).digest()
        if name in seen or not _is_prose(text):
            continue
        seen.add(name)
        if forbidden.has(text):
            dropped += 1
            continue
        others.append(text)
        projects[project.name] = projects.get(project.name) or licence(project)
        digest.update(relative.encode() + b"\0" + data + b"\0")
    return Corpus(stdlib, held, others, digest.hexdigest(), dropped, projects)


class Forbidden(NamedTuple):
    """Lines, and runs of lines, that no file of other sources may share with held-out texts."""

    lines: frozenset[str]
    runs: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, texts: list[str]) -> Forbidden:
        """Make the set of lines of held-out texts."""
        found = [telling(text) for text in texts]
        runs = frozenset(run for lines in found for run in _runs(lines))
        return cls(frozenset(line for lines in found for line in lines), runs)

    def has(self, text: str) -> bool:
        """Whether a text shares too much."""
        lines = telling(text)
        many = sum(line in self.lines for line in lines) > SHARED * len(lines)
        return many or any(run in self.runs for run in _runs(lines))


def telling(text: str) -> list[str]:
    """List lines that two files hardly share by chance."""
    return [
        line
        for line in map(str.strip, text.splitlines())
        if len(line) >= TELLING and not line.startswith(("import ", "from "))
    ]


def _runs(lines: list[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(lines[i : i + RUN]) for i in range(len(lines) - RUN + 1))


def licence(project: Path) -> str:
    """Summarise a wheel's metadata; the interpreter's if there is none."""
    found = sorted(project.glob("*.dist-info/METADATA"))
    if not found:
        return "PSF-2.0"
    fields = email.message_from_bytes(found[0].read_bytes())
    kinds = [c.split(" :: ")[-1] for c in fields.get_all("Classifier", []) if "License ::" in c]
    told = [fields.get("License-Expression"), " or ".join(kinds), fields.get("License")]
    return next((text.split("\n")[0][:60] for text in told if text), "see the project")


def _others(folders: Iterable[Path]) -> Iterator[tuple[Path, str, bytes]]:
    """Yield files of other sources, by project, ordered by the hashes of their paths."""
    for folder in folders:
        own = folder == Path(sysconfig.get_paths()["stdlib"]) / "test"
        for project in [folder] if own else sorted(p for p in folder.iterdir() if p.is_dir()):
            files = []
            for path in project.rglob("*.py"):
                relative = path.relative_to(folder.parent if own else folder).as_posix()
                parts = set(relative.split("/")[1:-1])
                if parts & LEFT_OUT or not SMALLEST <= path.stat().st_size <= LARGEST:
                    continue
                files.append((hashlib.sha256(relative.encode()).digest(), relative, path))
            taken = 0
            for _, relative, path in sorted(files):
                data = path.read_bytes()
                if own or taken + len(data) <= PER_PACKAGE:
                    taken += len(data)
                    yield project, relative, data


def _is_prose(text: str) -> bool:
    """Whether a file is code that somebody wrote, not a table."""
    lines = text.splitlines()
    foreign = sum(not c.isascii() for c in text)
    long = sum(len(line) for line in lines if len(line) > 120)
    digits = sum(c.isdigit() for c in text)
    return max(foreign * 50, long * 4, digits * 8) < len(text)
