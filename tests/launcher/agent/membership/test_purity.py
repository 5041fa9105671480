"""What the pure part must not touch; what the agent may import is in test_layers.py."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

AGENT = Path(__file__).parents[4] / "launcher" / "agent"
PURE = ("group", "belonging", "settings")
PACKAGES = {"launcher", "launcher.agent.membership"}
FOR_PURE_CODE = {"__future__", "collections", "dataclasses", "enum", "json", "math", "typing"}
FOR_PURE_CODE |= {"functools", "itertools"}


def imports_of(path: Path) -> set[str]:
    """Full names of what a module imports anywhere, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= set(names) if node.module in PACKAGES else {str(node.module)}
    return found


@pytest.mark.parametrize("name", PURE)
def test_the_pure_part_imports_neither_torch_nor_threads_nor_time(name):
    for imported in imports_of(AGENT / "membership" / f"{name}.py"):
        ours = imported.rpartition(".")
        if ours[0] == "launcher.agent.membership":
            assert ours[2] in PURE
        else:
            assert imported.partition(".")[0] in FOR_PURE_CODE | {"launcher"}, imported
            assert imported != "launcher.contract.clock"


@pytest.mark.parametrize("path", sorted((AGENT / "membership").glob("*.py")), ids=lambda p: p.stem)
def test_no_module_of_membership_names_a_wall_clock(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"wall", "time", "now", "utcnow", "ctime"}, ast.unparse(node)
    assert not imports_of(path) & {"time", "datetime.datetime"}
