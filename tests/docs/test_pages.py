"""Links, line lengths, commands and Python blocks of the documentation."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import unicodedata
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from sterna.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "tests").rglob("*.md")),
    *sorted((ROOT / "papers").rglob("*.md")),
]
#: Made when the site is built (docs/site/hooks.py).
GENERATED = ("docs/reference/cli.md", "docs/reference/python.md", "docs/changelog.md")
#: Commands of sterna-papers, which need not be installed.
PAPERS = ("tune", "figure", "peers")
#: Pages name files from here, or from the root.
SOURCES = ("src", "src/sterna", "native", "papers/src/sterna_papers", "tests", "papers")
FENCE = re.compile(r"^( *)(```|~~~)(\w*)[^\n]*\n(.*?)^\1\2", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="needs the source tree's docs")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> Iterator[tuple[int, str]]:
    """(line, text) of the page's blocks of a language."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        if match[3] == language:
            yield text.count("\n", 0, match.start()) + 1, match[4]


def prose(page: Path) -> str:
    """The page without its code."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"(`+)[^`].*?\1", "", text, flags=re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """The ids of a page's headings, as mkdocs and GitHub make them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found: set[str] = set()
    for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
        ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        kept = re.sub(r"[^\w\s-]", "", ascii_only).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", kept))
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links(page: Path) -> None:
    """Every relative link leads to a file, and to a heading of it."""
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = page.parent.joinpath(path).resolve() if path else page
        if other.is_relative_to(ROOT) and str(other.relative_to(ROOT)) in GENERATED:
            continue
        if not other.exists() or (anchor and anchor not in anchors(other)):
            wrong.append(target)
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines(page: Path) -> None:
    """Prose is wrapped at 100 columns; tables, code and single long words are not."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    wrong = [
        line
        for line in text.splitlines()
        if len(line) > 100 and not line.lstrip().startswith("|") and " " in line.strip()[:100]
    ]
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths(page: Path) -> None:
    """Files of the repository that a page names are there."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    roots = [ROOT, *(ROOT / name for name in SOURCES)]
    named = re.findall(r"`([\w./-]+/[\w-]+\.(?:py|h|cpp|json|yml))`", text)
    wrong = [
        path
        for path in named
        if not re.search(r"NAME|FAMILY|ARCHITECTURE", path)
        and not any((root / path).exists() for root in roots)
    ]
    wrong += {*re.findall(r"`(test_\w+\.py)`", text)} - files_of_tests()
    assert not wrong


@cache
def files_of_tests() -> set[str]:
    """Names of all files of tests."""
    return {path.name for path in (*ROOT.glob("tests/**/*.py"), *ROOT.glob("papers/tests/*.py"))}


def test_pages_that_sources_name() -> None:
    """A comment or a message that names a page of docs/ names one that is there."""
    wrong = []
    for folder in ("src", "papers", "native", "tests", "examples", "docs"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".h", ".cpp", ".yaml", ".md"):
                for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
                    if not (ROOT / page).exists() and path != Path(__file__):
                        wrong.append(f"{path.relative_to(ROOT)}: {page}")
    # Pages of ggml, git-lfs and llguidance.
    others = ("docs/gguf.md", "docs/spec.md", "docs/syntax.md")
    assert not [line for line in wrong if not line.endswith(others)]


def test_every_page_is_in_the_navigation() -> None:
    """mkdocs warns of a page that is left out; this says so without it."""
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    pages = {str(p.relative_to(ROOT / "docs")) for p in PAGES if p.is_relative_to(ROOT / "docs")}
    assert listed == pages | {p.removeprefix("docs/") for p in GENERATED}


def commands(text: str) -> Iterator[list[str]]:
    """The calls of `sterna` in a shell block, without what is piped, redirected or a comment."""
    for line in text.replace("\\\n", " ").splitlines():
        every = shlex.split(line.replace("$ ", "", 1), comments=True)
        joints = [i for i, word in enumerate(every) if re.fullmatch(r"[|&]+", word)]
        for begin, end in zip([0, *(i + 1 for i in joints)], [*joints, None], strict=True):
            words = every[begin:end]
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            if words and words[0] == "sterna":
                last = next((i for i, w in enumerate(words) if re.match(r"\d?[<>]", w)), None)
                yield words[1:last]


def parse(words: list[str]) -> None:
    """Click's parsing of a command, without its effect."""
    command: click.Command = main
    ctx = click.Context(command, info_name="sterna")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        child = command.get_command(ctx, words[0])
        if child is None and words[0] in PAPERS and find_spec("sterna_papers") is None:
            return
        assert child is not None, f"no such command: {words[0]}"
        command, words = child, words[1:]
        ctx = click.Context(command, info_name=command.name, parent=ctx)
    command.make_parser(ctx).parse_args(args=list(words))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands(page: Path) -> None:
    """Each command of a shell block exists and has the options that it is given."""
    wrong = []
    for line, text in blocks(page, "sh"):
        for words in commands(text):
            try:
                parse(words)
            except (click.UsageError, AssertionError) as error:
                wrong.append(f"line {line}: sterna {shlex.join(words)}: {error}")
    # Options that the text names in passing belong to some command.
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python(page: Path) -> None:
    """Each block of Python is Python, and what it imports of Sterna is there."""
    for line, text in blocks(page, "python"):
        if page.name == "README.md" and text.startswith("def read_lines(path):"):
            continue  # a sample of nano's
        for node in ast.walk(ast.parse(text, f"{name_of(page)}:{line}")):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == "sterna":
                        importlib.import_module(alias.name)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sterna"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name), f"line {line}: {alias.name}"


def test_environment() -> None:
    """The table of variables has those that the sources read."""
    page = (ROOT / "docs/reference/environment.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(STERNA_\w+)`", page, re.MULTILINE))
    read: set[str] = set()
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "papers/src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                read.update(re.findall(r"^STERNA_[A-Z0-9_]+$", node.value))
    for path in (ROOT / "native").rglob("*.cpp"):
        read.update(re.findall(r'getenv\("(STERNA_\w+)"', path.read_text(encoding="utf-8")))
    serve = main.get_command(click.Context(main), "serve")
    assert serve is not None
    options = {str(p.envvar) for p in serve.params if p.envvar}  # told of as a whole
    assert told == read - options


def test_kernel_units() -> None:
    """The table of kernel units has all of them."""
    page = (ROOT / "docs/reference/environment.md").read_text(encoding="utf-8")
    table = page[page.index("| unit |") :].split("\n\n")[0]
    told = {n for row in table.splitlines()[2:] for n in re.findall("`(\\w+)`", row.split("|")[1])}
    assert told == {path.stem for path in (ROOT / "native/isa").glob("*.h")}


def test_formats() -> None:
    """The table of weight formats has all of them, with their bits."""
    from sterna import formats

    page = (ROOT / "docs/reference/formats.md").read_text(encoding="utf-8")
    table = page[page.index("| format |") :].split("\n\n")[0]
    told: dict[str, str] = {}
    for row in table.splitlines()[2:]:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]
        names = re.findall(r"`([^`]+)`", cells[1])
        bits = cells[5].split(", ")
        told.update(
            zip(names, bits if len(bits) == len(names) else bits * len(names), strict=False)
        )
    for name in formats.names():
        (pattern,) = (p for p in told if re.fullmatch(p.replace("*", ".*"), name))
        if "*" not in pattern:
            assert float(told[pattern]) == pytest.approx(formats.get(name).bits, abs=0.006), name


def test_activations() -> None:
    """The table of activations' scales in the page about numerics is that of the formats."""
    from sterna import formats

    page = (ROOT / "docs/explanation/numerics.md").read_text(encoding="utf-8")
    table = page[page.index("| scales of the weight format") :].split("\n\n")[0]
    told = {}
    for row in table.splitlines()[2:]:
        for name in re.findall(r"`([^`]+)`", row.split("|")[1]):
            told[name] = row.split("|")[2].strip()
    all_of_a_token = {0: "all of a token"}
    for name, inputs in told.items():
        group = formats.get(name).scales.x_group
        assert inputs == all_of_a_token.get(group, str(group)), name
    known = {formats.get(name).scales.x_group for name in (*formats.names(), *told)}
    assert known == {formats.get(name).scales.x_group for name in told}


def test_layers() -> None:
    """The table of layers in the page about architecture is the one that imports keep to."""
    tree = ast.parse((ROOT / "tests/test_layers.py").read_text(encoding="utf-8"))
    (layers,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS"
    )
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    table = page[page.index("| layer | modules |") :].split("\n\n")[0]
    told = [tuple(re.findall(r"`([\w.]+)`", row)) for row in table.splitlines()[2:]]
    assert told[::-1] == [tuple(layer) for layer in layers]


def test_places_are_there() -> None:
    """The files and folders in the table of the page about architecture exist."""
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    table = page[page.index("| I look for … |") :].split("\n\n")[0]
    paths = {path for path in re.findall(r"`([\w/.]+)`", table) if "/" in path or "." in path[:-1]}
    paths = {path for path in paths if re.search(r"/|\.(py|h|cpp)$", path)}
    assert len(paths) > 60
    missing = [
        path
        for path in paths
        if not (ROOT if path.startswith("native/") else ROOT / "src/sterna").joinpath(path).exists()
        and not any((ROOT / "src/sterna").rglob(path))
        and "NAME" not in path
    ]
    assert not missing


def test_limits_of_templates() -> None:
    """The table of limits in the page about chat is that of the sandbox."""
    from sterna.chat import limits as sandbox

    page = (ROOT / "docs/how-to/chat.md").read_text(encoding="utf-8")
    table = page[page.index("| | limit |") :].split("\n\n")[0]
    told = {row.split("|")[1].strip(): row.split("|")[2] for row in table.splitlines()[2:]}
    limits = {
        "compiling and rendering": (sandbox.MAX_SECONDS, sandbox.MAX_SECONDS),
        "steps (calls, operators, attributes, turns of a loop, outputs)": (sandbox.MAX_STEPS,),
        "output, and each value": (sandbox.MAX_CHARS, 8),
        "all values of a rendering": (sandbox.MAX_CREATED >> 20,),
        "depth": (sandbox.MAX_DEPTH, sandbox.MAX_LOOPS),
        "source": (sandbox.MAX_SOURCE_CHARS, sandbox.MAX_TOKENS, sandbox.MAX_NODES),
        "calls": (sandbox.MAX_ARGUMENTS, sandbox.MAX_INT_BITS),
    }
    for name, text in told.items():
        numbers = [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", text)]
        assert numbers == list(limits[name]), name
    assert told.keys() == limits.keys()


def test_every_architecture_has_a_row() -> None:
    """The table of families names all classes and GGUF architectures, and no other class."""
    from sterna.gguf.architectures import ARCHITECTURES_OF
    from sterna.models import architectures

    page = (ROOT / "docs/reference/models.md").read_text(encoding="utf-8")
    table = page[page.index("| family |") :].split("\n\n")[0]
    column = " ".join(row.split("|")[2] for row in table.splitlines()[2:])
    told = set(re.findall(r"`([^`]+)`", column))
    classes = {name for name in told if name[0].isupper()}
    assert classes == set(architectures())
    assert told - classes == set(ARCHITECTURES_OF)
