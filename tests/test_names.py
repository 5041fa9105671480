"""One word for one thing: no public class name has two meanings in the tree."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("launcher", "fabric_train", "train")
SAME_MEANING = {"InputError"}
"""What was given is wrong. The training has its own, because it imports nothing of the launcher."""


def test_no_public_class_name_is_defined_twice():
    modules = defaultdict(set)
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].add(str(path.relative_to(ROOT)))
    twice = {name: found for name, found in modules.items() if len(found) > 1}
    assert {name: found for name, found in twice.items() if name not in SAME_MEANING} == {}
