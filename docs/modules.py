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
    """One line: the first paragraph of its docstring, and the numbers that it sets."""
    tree = ast.parse(path.read_text("utf-8"))
    told = (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ")
    if not told or (path.name == "__init__.py" and not any(map(_is_code, tree.body))):
        return ""
    numbers = [name for node in tree.body for name in _numbers(node)]
    return f"- `{path.stem}`: {told}" + (f" ({', '.join(numbers)})" if numbers else "")


def _is_code(node: ast.stmt) -> bool:
    """Whether a package holds more than its docstring and what it hands on."""
    return isinstance(node, ast.FunctionDef | ast.ClassDef)


def _numbers(node: ast.stmt) -> list[str]:
    """The public constants with a number as their value that a statement assigns, also in pairs."""
    if not isinstance(node, ast.Assign):
        return []
    pairs = [pair for target in node.targets for pair in _pairs(target, node.value)]
    names = [one.id for one, value in pairs if isinstance(one, ast.Name) and _is_number(value)]
    return [f"`{name}`" for name in names if name.isupper() and not name.startswith("_")]


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=False))
    return [(target, value)]


def _is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_number(value.left) or _is_number(value.right)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)
