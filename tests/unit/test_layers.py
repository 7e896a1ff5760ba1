"""The shape of the code, read from its syntax: import rules, file lengths, no prints.

Imports run one way (the rules of `LAYERS` and `MAY_IMPORT`), at the top of a module and inside
its functions alike. Nothing is imported to find out, so a broken module can't hide from it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "zephon_mm"
KERNELS = ROOT / "kernels" / "zephon_mm_kernels"

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "rng", "patches", "config", "sample"}),
    frozenset(
        {"decoders", "models", "media", "formats", "shards", "batch", "collate", "context", "dummy"}
    ),
    frozenset({"stages", "sequencer", "plan", "backends", "state", "device"}),
    frozenset({"pipeline", "digests"}),
    frozenset({"distributed"}),
    frozenset({"loader"}),
    frozenset({"cli", "demo", "__main__"}),
)
"""From the ground up. A unit imports from lower layers, and from its own unless `APART` says no."""

APART: tuple[frozenset[str], ...] = (frozenset({"plan", "stages", "sequencer"}),)
"""Units that never import each other."""

KNOWS_ONLY: dict[str, frozenset[str]] = {
    "backends": frozenset({"errors", "config"}),  # callables over ordered items, no samples
    "shards": frozenset({"errors", "config", "rng"}),  # bytes, no media
}

MAX_LINES = 400


def sources(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def unit_of(path: Path, root: Path = PACKAGE) -> str:
    """The module or folder directly under the package that a file belongs to."""
    return path.relative_to(root).parts[0].removesuffix(".py")


def imported(tree: ast.AST, module: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line and dotted name of everything imported; ``module`` resolves the relative ones.

    ``module`` is the file's package path, as ``("zephon_mm", "shards")``.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = module[: len(module) - node.level + 1] if node.level else ()
            name = base + tuple((node.module or "").split(".")) if node.module else base
            if len(name) > 1 or node.module not in (None, "zephon_mm"):
                yield node.lineno, name
            if len(name) == 1:  # `from . import x` at the top of the package: x is the unit
                for alias in node.names:
                    yield node.lineno, (*name, alias.name)


def package_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and unit of each import from this package in a file of it."""
    folder = ("zephon_mm", *path.relative_to(PACKAGE).parts[:-1])
    for line, name in imported(ast.parse(path.read_text("utf-8")), folder):
        if name[0] == "zephon_mm" and len(name) > 1:
            yield line, name[1]


def layer(unit: str) -> int:
    for height, units in enumerate(LAYERS):
        if unit in units:
            return height
    raise AssertionError(f"zephon_mm/{unit} has no place in LAYERS: give it one")


def breaks(unit: str, other: str) -> str | None:
    """Why ``unit`` may not import ``other``; None if it may."""
    if unit == other:
        return None
    if layer(other) > layer(unit):
        return "imports run downwards"
    for group in APART:
        if unit in group and other in group:
            return "they never import each other"
    if unit in KNOWS_ONLY and other not in KNOWS_ONLY[unit]:
        return f"it knows only {', '.join(sorted(KNOWS_ONLY[unit]))}"
    return None


@pytest.mark.parametrize("path", sources(PACKAGE), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_one_way(path: Path) -> None:
    unit = unit_of(path)
    if unit == "__init__":  # the public names, from anywhere below the command line
        wrong = [u for _, u in package_imports(path) if layer(u) > layer("loader")]
    else:
        wrong = [
            f"line {line}: {unit} imports {other}: {why}"
            for line, other in package_imports(path)
            if (why := breaks(unit, other))
        ]
    assert not wrong


@pytest.mark.parametrize("path", sources(KERNELS), ids=lambda p: str(p.relative_to(ROOT)))
def test_kernels_never_import_the_package(path: Path) -> None:
    folder = ("zephon_mm_kernels", *path.relative_to(KERNELS).parts[:-1])
    names = [name for _, name in imported(ast.parse(path.read_text("utf-8")), folder)]
    assert not [name for name in names if name[0] == "zephon_mm"]


@pytest.mark.parametrize("path", sources(PACKAGE, KERNELS), ids=lambda p: str(p.relative_to(ROOT)))
def test_no_prints_and_no_long_files(path: Path) -> None:
    text = path.read_text("utf-8")
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    prints = [c.lineno for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]
    assert not prints
    assert text.count("\n") <= MAX_LINES


def test_the_rules_see_what_they_forbid() -> None:
    tree = ast.parse(
        "def f():\n    from ..sequencer.packing import take\n"
        "import zephon_mm.loader\nfrom zephon_mm import stages\nfrom . import window\n"
    )
    found = {name[1] for _, name in imported(tree, ("zephon_mm", "plan")) if len(name) > 1}
    assert {"sequencer", "loader", "stages", "plan"} <= found
    assert breaks("plan", "sequencer") and breaks("shards", "loader") and breaks("backends", "rng")
    assert breaks("loader", "plan") is None and breaks("shards", "errors") is None
