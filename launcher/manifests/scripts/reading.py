"""A training script as the rules see it: names through their imports, values, conditions, and
comments that ignore a rule.

The script is never run. What its syntax tree does not show counts as unknown, and no finding rests
on it.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator

from launcher.manifests.checks.rules import Breach, Breaches
from launcher.manifests.scripts.rules import ScriptRule

IGNORED = re.compile(r"#\s*launcher:\s*ignore\[([\w\s,-]*)\]")
MAX_STEPS = 10**5
"""How many nodes are visited while following names, about 1 s; then values count as unknown."""
SKIPS = (ast.Return, ast.Continue, ast.Break)
DEPTH = 4
"""How many names a value is followed through: enough for ``args.gpu``, a parameter, a helper."""


class ScriptTree:
    """A script's tree, and what is known of each name in it. Raises what ``ast.parse`` raises."""

    def __init__(self, text: str, file: str, steps: int = MAX_STEPS) -> None:
        self.steps = steps
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as for "\d", which is the script's own affair
            self.tree = ast.parse(text)
        self.file, self.lines = file, text.splitlines()
        self.nodes: list[ast.AST] = [self.tree]
        self.parents: dict[ast.AST, ast.AST] = {}
        self.imports: dict[str, str] = {}
        self.functions: dict[str, list[ast.FunctionDef]] = defaultdict(list)
        self.called: dict[str, list[ast.Call]] = defaultdict(list)
        """Calls by the last part of their names."""
        self._assigned: dict[tuple[ast.AST | None, str], list[ast.expr]] = defaultdict(list)
        self._returned: dict[ast.AST | None, list[ast.expr]] = defaultdict(list)
        for node in self.nodes:
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                self.nodes.append(child)
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._add_import(node)
        for node in self.nodes:
            self._add(node)
        self.all_calls = [call for calls in self.called.values() for call in calls]
        self.classes = [node for node in self.nodes if isinstance(node, ast.ClassDef)]
        self.loops = [node for node in self.nodes if isinstance(node, ast.For | ast.While)]

    def _add_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                self.imports[alias.asname or alias.name] = f"{module}.{alias.name}"
            else:
                first = alias.name.partition(".")[0]
                self.imports[alias.asname or first] = alias.name if alias.asname else first

    def _add(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            self.called[self.last(node)].append(node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value:
            self._assign(node.target, node.value)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._assign(node.optional_vars, node.context_expr)
        elif isinstance(node, ast.Return) and node.value is not None:
            self._returned[self.function_of(node)].append(node.value)
        elif isinstance(node, ast.FunctionDef):
            self.functions[node.name].append(node)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple):
            values = value.elts if isinstance(value, ast.Tuple) else []
            for i, part in enumerate(target.elts):
                element: ast.expr = ast.Subscript(value=value, slice=ast.Constant(value=i))
                is_paired = len(values) == len(target.elts)
                self._assign(part, values[i] if is_paired else element)
        elif isinstance(target, ast.Name):
            self._assigned[self.function_of(target), target.id].append(value)
        elif isinstance(target, ast.Attribute):
            self._assigned[None, self.name(target)].append(value)

    # -- names --------------------------------------------------------------------------------

    def name(self, node: ast.AST | None) -> str:
        """``torch.distributed.barrier`` for ``dist.barrier``, also of a call; ``?`` for no name."""
        node = node.func if isinstance(node, ast.Call) else node
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        head = self.imports.get(node.id, node.id) if isinstance(node, ast.Name) else "?"
        return ".".join((head, *reversed(parts)))

    def last(self, node: ast.AST) -> str:
        """The last part of a name: the function or method alone."""
        return self.name(node).rpartition(".")[2]

    def root(self, node: ast.AST) -> str:
        """The package that a name comes from; its first part where it is not imported."""
        return self.name(node).partition(".")[0]

    def calls(self, last: str, *roots: str) -> list[ast.Call]:
        """The calls of that name, only those of the packages ``roots`` if given, by line."""
        calls = [
            call for call in self.called.get(last, ()) if not roots or self.root(call) in roots
        ]
        return sorted(calls, key=lambda call: call.lineno)

    def leads_to(self, node: ast.AST | None, name: str, depth: int = 3) -> bool:
        """Whether a call of that name is in a node, or in the functions that it calls."""
        inside = ast.walk(node) if node is not None else ()
        called = {self.last(part) for part in inside if isinstance(part, ast.Call)}
        inner = [function for last in called for function in self.functions.get(last, ())]
        return name in called or (
            depth > 0 and any(self.leads_to(function, name, depth - 1) for function in inner)
        )

    def function_of(self, node: ast.AST) -> ast.FunctionDef | None:
        """The function that a node is in; None at the top of the script."""
        above = self.parents.get(node)
        while above is not None and not isinstance(above, ast.FunctionDef):
            above = self.parents.get(above)
        return above

    def is_beside(self, node: ast.AST, other: ast.AST) -> bool:
        """Whether two nodes are in one function, or both at the top."""
        return self.function_of(node) is self.function_of(other)

    def bases(self, node: ast.ClassDef, depth: int = DEPTH) -> set[str]:
        """The full names of a class' bases, through classes of this script."""
        names = {self.name(base) for base in node.bases}
        for other in self.classes if depth else ():
            if other.name in names and other is not node:
                names |= self.bases(other, depth - 1)
        return names

    # -- values -------------------------------------------------------------------------------

    def values(self, node: ast.AST) -> list[ast.expr]:
        """What is assigned to a name, given for a parameter, or returned by a call."""
        values = self._values(node) if self.steps > 0 else []
        self.steps -= 1 + len(values)
        return values

    def _values(self, node: ast.AST) -> list[ast.expr]:
        if isinstance(node, ast.Attribute):
            return self._assigned.get((None, self.name(node)), [])
        if isinstance(node, ast.Name):
            scope = self.function_of(node)
            while scope is not None:
                if values := self._assigned.get((scope, node.id)) or self._given(scope, node.id):
                    return values
                scope = self.function_of(scope)
            return self._assigned.get((None, node.id), [])
        if isinstance(node, ast.Subscript) and isinstance(at := constant(node.slice), int):
            rows = [row for row in self.values(node.value) if isinstance(row, ast.Tuple)]
            return [row.elts[at] for row in rows if at < len(row.elts)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            functions = self.functions.get(node.func.id, ())
            return [value for function in functions for value in self._returned.get(function, ())]
        return []

    def _given(self, function: ast.FunctionDef, name: str) -> list[ast.expr]:
        """What the calls of a function give for one of its parameters."""
        names = [arg.arg for arg in function.args.args if arg.arg != "self"]
        at = names.index(name) if name in names else -1
        values = (argument(call, name, at) for call in self.called.get(function.name, ()))
        return [value for value in values if value is not None]

    def reach(self, node: ast.AST | None, depth: int = DEPTH) -> Iterator[ast.AST]:
        """A node with all that is in it, and in the values of its names."""
        visited: set[ast.AST] = set()
        todo = [(node, depth)] if node is not None else []
        while todo and self.steps > 0:
            part, left = todo.pop()
            if part not in visited:
                self.steps -= 1
                visited.add(part)
                yield part
                values = self.values(part) if left else []
                todo += [(value, left - 1) for value in values]
                # Of a, b = f(), follow only the part of what f returns for this name.
                if not (values and isinstance(part, ast.Subscript)):
                    todo += [(child, left) for child in ast.iter_child_nodes(part)]

    def word(self, node: ast.AST) -> str:
        """The last part of a name, or the variable of the environment that is read here."""
        key: ast.AST | None = None
        if isinstance(node, ast.Subscript) and self.name(node.value) == "os.environ":
            key = node.slice
        elif isinstance(node, ast.Call) and node.args and self.name(node) in (
            "os.getenv", "os.environ.get", "os.environ.setdefault",
        ):  # fmt: skip
            key = node.args[0]
        if key is not None:
            return str(constant(key))
        return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")

    # -- conditions ---------------------------------------------------------------------------

    def conditions(self, node: ast.AST) -> list[tuple[ast.expr, bool]]:
        """The tests that decide in its function if a node is reached, with the results needed."""
        tests: list[tuple[ast.expr, bool]] = []
        while (above := self.parents.get(node)) is not None:
            if isinstance(above, ast.If | ast.IfExp | ast.While) and node is not above.test:
                tests.append((above.test, node not in _block(above, "orelse")))
            elif isinstance(above, ast.BoolOp) and isinstance(node, ast.expr):
                tests += [(value, True) for value in above.values[: above.values.index(node)]]
            for inside in (_block(above, "body"), _block(above, "orelse")):
                for statement in inside[: inside.index(node)] if node in inside else ():
                    # An if whose body skips what follows, without an error.
                    if isinstance(statement, ast.If) and isinstance(statement.body[-1], SKIPS):
                        tests.append((statement.test, False))
            if isinstance(above, ast.FunctionDef):
                break
            node = above
        return tests

    def callers(self, node: ast.AST) -> list[ast.Call]:
        """The calls, from elsewhere, of the function that a node is in."""
        self.steps -= 1
        function = self.function_of(node) if self.steps > 0 else None
        calls = self.called.get(function.name, []) if function else []
        return [call for call in calls if self.function_of(call) is not function]

    def hit(self, rule: ScriptRule, node: ast.expr | ast.stmt, what: str, fix: str) -> Breaches:
        """A breach at a node, unless a comment there says to ignore it."""
        last = (node.end_lineno or node.lineno) if isinstance(node, ast.expr) else node.lineno
        for line in self.lines[node.lineno - 1 : last]:
            ignored = IGNORED.search(line)
            if ignored and rule.id in re.split(r"[\s,]+", ignored[1]):
                return
        where = f"{self.file}:{node.lineno}"
        yield Breach(rule=rule, where=where, line=node.lineno, what=what, fix=fix)


def _block(node: ast.AST, name: str) -> list[ast.AST]:
    inside = getattr(node, name, None)
    return inside if isinstance(inside, list) else [] if inside is None else [inside]


def argument(call: ast.Call, name: str, at: int = -1) -> ast.expr | None:
    """An argument by its keyword, or by its place where that is 0 or more."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    is_plain = not any(isinstance(arg, ast.Starred) for arg in call.args)
    return call.args[at] if 0 <= at < len(call.args) and is_plain else None


def is_open(call: ast.Call) -> bool:
    """Whether a call has arguments that are not written out: ``*args`` or ``**kwargs``."""
    starred = any(isinstance(arg, ast.Starred) for arg in call.args)
    return starred or any(keyword.arg is None for keyword in call.keywords)


def constant(node: ast.AST | None) -> object:
    """The value of a literal; None for anything else."""
    return node.value if isinstance(node, ast.Constant) else None


def shown(node: ast.AST) -> str:
    """A node's source on one line of a message."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
