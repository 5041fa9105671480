"""The list of modules at the end of CONTRIBUTING.md, from their docstrings and constants."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGES = ("launcher", "fabric_train", "train", "benchmarks", "images", "docs", "tests")
_LIST = re.compile(r"(?<=<!-- modules: begin -->\n).*(?=<!-- modules: end -->)", re.DOTALL)


def fill_modules(text: str, root: Path) -> str:
    """The text of CONTRIBUTING.md with each module under ``root``, by folder."""
    parts = (_render_folder(root, folder) for name in PACKAGES for folder in _folders(root / name))
    return _LIST.sub("\n" + "\n".join(filter(None, parts)), text)


def _folders(package: Path) -> list[Path]:
    # Tests keep recorded files too; programs are what tests and benchmarks run.
    inner = (path.parent for path in package.rglob("*.py"))
    left_out = ("programs", "peers", "examples")
    return sorted({folder for folder in inner if folder.name not in left_out})


def _render_folder(root: Path, folder: Path) -> str:
    # Tests say by their folder and name what they are about.
    modules = [path for path in sorted(folder.glob("*.py")) if not path.name.startswith("test_")]
    lines = [line for path in modules if (line := _describe(path))]
    return f"`{folder.relative_to(root)}/`\n\n" + "\n".join(lines) + "\n" if lines else ""


def _describe(path: Path) -> str:
    """One line: the first sentence of its docstring, and the numbers that it sets."""
    tree = ast.parse(path.read_text("utf-8"))
    told = (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ")
    if not told or path.name == "__init__.py":
        return ""
    numbers = [name for node in tree.body for name in _numbers(node)]
    return f"- `{path.stem}`: {told}" + (f" ({', '.join(numbers)})" if numbers else "")


def _numbers(node: ast.stmt) -> list[str]:
    """The public constants with a number as their value that a statement assigns."""
    if not isinstance(node, ast.Assign) or not _is_number(node.value):
        return []
    names = [one.id for one in node.targets if isinstance(one, ast.Name)]
    return [f"`{name}`" for name in names if name.isupper() and not name.startswith("_")]


def _is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_number(value.left) or _is_number(value.right)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)
