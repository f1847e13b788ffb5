"""The layers of docs/explanation/architecture.md, held by reading the sources."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from objects import exported_symbols

import sterna

PACKAGE = Path(sterna.__file__).parent
NATIVE = Path(__file__).parent.parent / "native"

# Imports go to a strictly lower layer, or stay inside one module or package.
LAYERS = (
    ("_native", "errors"),
    ("files", "checks", "one_at_a_time", "token_bytes", "turn_tokens"),
    ("formats", "runtime", "tokenizer", "chat", "images"),
    ("graph", "checkpoints", "ops", "outputs", "sampling_params"),
    ("weights", "calibration"),
    ("models",),
    ("gguf",),
    ("loading",),
    ("engine",),
    ("llm",),
    ("bench", "convert", "evaluate", "server", "torch"),
    ("bundle", "train"),
    ("integrations",),
    ("cli",),
    ("__init__", "__main__"),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# These may import the ones below and third parties only.
LEAVES = ("errors", "files", "tokenizer", "chat", "images")
BELOW_LEAVES = ("errors", "files", "token_bytes")
# Third parties that only the surface may know; the core never prints and needs no torch.
SURFACE_ONLY = {
    "PIL": ("images",),
    "click": ("cli",),
    "rich": ("cli",),
    "prompt_toolkit": ("cli",),
    "starlette": ("server",),
    "uvicorn": ("server",),
    "msgspec": ("server",),
    "prometheus_client": ("server",),
    "python_multipart": ("server",),
    "ray": ("integrations",),
    "torch": ("integrations", "torch", "train"),
    "transformers": ("integrations",),
    "peft": ("integrations",),
    "sterna_papers": (),  # another package, of this repository
}


def component(path: Path) -> str:
    """The module or package directly below `sterna` that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@cache  # several tests ask for every file's
def imported(path: Path) -> tuple[str, ...]:
    """Absolute dotted names of everything a file imports, including inside functions."""
    package = ("sterna", *path.relative_to(PACKAGE).parent.parts)
    found = list[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            # The last part may be a module (`from sterna import formats`) or a name.
            found += [f"{module}.{alias.name}" for alias in node.names]
    return tuple(found)


def edges() -> Iterator[tuple[Path, str, str]]:
    """(file, its component, imported dotted name)."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in imported(path):
            yield path, component(path), name


def test_every_module_has_a_layer() -> None:
    """A new module takes its place in the picture first."""
    components = {component(path) for path in PACKAGE.rglob("*.py")}
    assert components <= RANK.keys(), (
        f"add to LAYERS and docs/explanation/architecture.md: {components - RANK.keys()}"
    )


def test_imports_go_downwards() -> None:
    """No module imports its own layer's neighbours or anything above."""
    wrong = []
    for path, source, name in edges():
        head, *parts = name.split(".")
        target = parts[0] if parts else "__init__"
        if name == "sterna.__version__":  # a constant of the package, for --version
            continue
        target = target if target in RANK else "__init__"
        if head == "sterna" and target != source and RANK[target] >= RANK[source]:
            wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong


def circles() -> list[list[str]]:
    """Groups of modules that import each other, each sorted; imports in functions count, too."""
    modules = {
        ".".join(("sterna", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in PACKAGE.rglob("*.py")
    }
    graph = {
        module: {
            name if name in modules else name.rpartition(".")[0]
            for name in imported(path)
            if not name.startswith("sterna._")  # an extension module, or a constant
        }.intersection(modules)
        - {module}
        for module, path in modules.items()
    }
    reached = {module: _reached(graph, module) for module in graph}
    groups = {
        tuple(sorted(other for other in reached[module] if module in reached[other]))
        for module in graph
    }
    return sorted(list(group) for group in groups if group)


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Modules that are imported from one, directly or not."""
    found, todo = set[str](), list(graph[start])
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            todo += graph[module]
    return found


def test_the_core_is_imported_in_one_form() -> None:
    """`from sterna import _native`: a reader then knows what `_native.x` is in every file."""
    wrong = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (
            isinstance(node, ast.Import)
            and any(alias.name.startswith("sterna._native") for alias in node.names)
        )
        or (
            isinstance(node, ast.ImportFrom)
            and (
                (node.module or "").startswith("sterna._native")
                or any(alias.name == "_native" and alias.asname for alias in node.names)
            )
        )
    ]
    assert not wrong


def test_no_import_circles() -> None:
    """No modules import each other, not even for annotations or within functions."""
    assert circles() == []


def test_leaves() -> None:
    """Files, the tokenizer and chat templates stand on errors, files and how tokens are spelt."""
    wrong = [
        f"{path.name} imports {name}"
        for path, source, name in edges()
        if source in LEAVES
        and name.split(".")[0] == "sterna"
        and name.split(".")[1] not in (*BELOW_LEAVES, source)
    ]
    assert not wrong


def test_endpoints_translate() -> None:
    """They turn a protocol's body into what the library takes, and its results back."""
    below = ("sterna.llm", "sterna.outputs", "sterna.errors", "sterna.server", "sterna.__version__")
    wrong = [
        f"{path.name} imports {name}"
        for path, source, name in edges()
        if source == "server"
        and path.parent.name == "endpoints"
        and name.startswith("sterna.")
        and not name.startswith(below)
    ]
    assert not wrong


def test_torch_is_imported_by_integrations_alone() -> None:
    """`sterna.torch` imports torch, which takes seconds and needs an extra: nobody asks for it."""
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path, source, name in edges()
        if source not in ("torch", "train", "integrations")
        and f"{name}.".startswith(("sterna.torch.", "sterna.train."))
    ]
    assert not wrong


def test_third_parties_of_the_surface() -> None:
    """Nothing below the surface imports click, rich, torch or transformers."""
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path, source, name in edges()
        if source not in SURFACE_ONLY.get(name.split(".")[0], (source,))
    ]
    assert not wrong


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in sorted(RANK)
        if (path := PACKAGE.joinpath(*name.split("."))).with_suffix(".py").exists() or path.is_dir()
    ],
)
def test_public_names_exist(name: str) -> None:
    """All names in a module's __all__ exist and are documented."""
    if name == "__main__":
        pytest.skip("importing it runs the command line")
    module = importlib.import_module("sterna" if name == "__init__" else f"sterna.{name}")
    for public in getattr(module, "__all__", ()):
        value = getattr(module, public)
        assert not callable(value) or value.__doc__, f"{name}.{public} has no docstring"


needs_sources = pytest.mark.skipif(not NATIVE.is_dir(), reason="needs the source tree's native/")


def includes(path: Path) -> list[str]:
    """The files that a C++ file includes."""
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)', path.read_text(), re.MULTILINE)


@needs_sources
def test_one_place_writes_the_outputs_of_linear_layers() -> None:
    """A kernel that took some of `LinearArgs::outputs` by itself could forget the rest."""
    folders = ("linear", "matrix", "scales", "layouts", "head", "units", "isa")
    users = [
        path.relative_to(NATIVE).as_posix()
        for folder in folders
        for path in (NATIVE / folder).rglob("*.h")
        if re.search(r"\.outputs\b", path.read_text())
    ]
    assert users == ["linear/output.h"]


@needs_sources
def test_native_layers() -> None:
    """An ISA header knows no format, and only bindings/ knows Python."""
    for path in sorted(p for p in NATIVE.rglob("*") if p.suffix in (".h", ".inc", ".cpp")):
        names = includes(path)
        if path.parent.name == "isa":
            assert not [n for n in names if "layouts/" in n or "kernel_table" in n], path
        if path.parent.name != "bindings":
            assert not [n for n in names if n.startswith(("nanobind", "Python.h"))], path


@needs_sources
def test_units_require_what_they_extend() -> None:
    """A unit runs kernels of the one that it extends, which must be ranked below it."""
    units = {}
    for path in NATIVE.glob("isa/*.h"):
        first = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("// ")
        fields = dict(field.split(":", 1) for field in first.split(" | "))
        units[path.stem] = {name.strip(): value.split() for name, value in fields.items()}
    extending = [name for name, fields in units.items() if "extends" in fields]
    assert extending
    for name in extending:
        unit, other = units[name], units[units[name]["extends"][0]]
        assert set(other["requires"][0].split(",")) <= set(unit["requires"][0].split(",")), name
        assert int(other["rank"][0]) < int(unit["rank"][0]), name


@needs_sources
@pytest.mark.skipif(shutil.which("nm") is None, reason="needs binutils' nm")
def test_one_symbol_per_isa() -> None:
    """A unit exports its table and nothing else.

    Any weak symbol (an inline function of the STL, say) could be the copy that the linker keeps for
    everyone, and it was compiled with instructions that another machine does not have.
    """
    objects = sorted(
        path
        for unit in (
            "kernels_*.dir/native/units/*.o",
            "layouts_*.dir/native/units/*.o",
        )
        for path in NATIVE.parent.glob(f"build/*/CMakeFiles/{unit}")
    )
    if not objects:
        pytest.skip("needs the objects of a build in this tree: run pip install . here")
    for path in objects:
        unit = next(part for part in path.parts if part.endswith(".dir")).removesuffix(".dir")
        names = [name.lstrip("_") for name in exported_symbols(path)]  # macOS puts one in front
        assert names == [f"sterna_{unit}"], path
