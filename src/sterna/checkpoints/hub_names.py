"""Names of models on the Hub: `org/name[@revision][:file]`, checked before anything uses them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from sterna.errors import RequestError, shown

PREFIX = "hf://"  # says that a Hub name is meant even where a folder has the same name
DEFAULT_REVISION = "main"
MAX_REPO_CHARS = 96  # the Hub's own limit
MAX_CHARS = 512
#: Names without a slash that mean a repository: those of Litespark's `load_model`.
ALIASES = {
    "bitnet-2b": "microsoft/bitnet-b1.58-2B-4T",
    "falcon-edge-1b": "tiiuae/Falcon-E-1B-Base",
    "falcon-edge-1b-instruct": "tiiuae/Falcon-E-1B-Instruct",
    "falcon-edge-3b": "tiiuae/Falcon-E-3B-Base",
    "falcon-edge-3b-instruct": "tiiuae/Falcon-E-3B-Instruct",
}

# The Hub allows these; a leading dash would be an option to someone, "--" and ".." are reserved.
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_REPO = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]*")
_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True)
class HubName:
    """A repository, a revision (branch, tag or commit) and, of several GGUF files, the one meant.

    `file`: a path in the repository, its last part, or a word of it such as Q4_K_M; None: the
    repository's only model.
    """

    repo: str
    revision: str = DEFAULT_REVISION
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubName:
        """Read `org/name[@revision][:file]`, or one of ALIASES.

        RequestError where a part breaks the Hub's rules.
        """
        name = ALIASES.get(text, text).removeprefix(PREFIX)
        if len(name) > MAX_CHARS:
            raise _malformed(text[:40] + "...", f"at most {MAX_CHARS} characters")
        if "://" in name:
            raise _malformed(text, "without an address in front")
        name, colon, file = name.partition(":")  # git allows no colon in the name of a revision
        repo, at, revision = name.partition("@")
        if len(repo) > MAX_REPO_CHARS or not _REPO.fullmatch(repo) or _reserved(repo):
            raise _malformed(text, "with letters, digits, '-', '_' and '.' in both parts")
        if at and (not _REVISION.fullmatch(revision) or not is_plain_path(revision)):
            raise _malformed(text, "with a branch, a tag or a commit after '@'")
        if colon and not is_plain_path(file):
            raise _malformed(
                text, "with a file of the repository, or a word of its name, after ':'"
            )
        return cls(repo, revision if at else DEFAULT_REVISION, file if colon else None)

    def is_commit(self, commit: str) -> bool:
        """Whether the revision is this commit, written in full or shortened to 7 digits or more."""
        return _SHORT_COMMIT.fullmatch(self.revision) is not None and commit.startswith(
            self.revision
        )

    def __str__(self) -> str:
        """Return the name as one would type it."""
        revision = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{self.repo}{revision}{f':{self.file}' if self.file else ''}"


def looks_like_name(text: str) -> bool:
    """Whether a text is meant as a Hub name, and not as a path: one slash, and nothing of a path,
    or one of ALIASES.

    A path begins with `.`, `/` or `~`, ends in a separator or `.gguf` (without a colon), or has a
    backslash or more than one slash before any `@` or `:`.
    """
    if text.startswith(PREFIX) or text in ALIASES:
        return True
    if text.startswith((".", "/", "~")) or "\\" in text or "://" in text:
        return False
    if text.endswith(("/", os.sep)) or (":" not in text and text.lower().endswith(".gguf")):
        return False
    return re.split("[@:]", text, maxsplit=1)[0].count("/") == 1


def is_plain_path(path: str) -> bool:
    """Whether a path of a repository stays in it, on any system, and is printable."""
    parts = path.split("/")
    return (
        0 < len(path) <= MAX_CHARS
        and path.isprintable()
        and not any(c in path for c in '\\:*?"<>|')
        and not path.startswith("-")
        and not path.endswith(".lock")
        and all(part.strip(". ") for part in parts)
    )


def _reserved(repo: str) -> bool:
    return "--" in repo or ".." in repo or repo.endswith(".git")


def _malformed(text: str, rule: str) -> RequestError:
    return RequestError(
        f"model: a name on the Hub must be org/name[@revision][:file], {rule}, "
        f"but got {shown(text)}"
    )
