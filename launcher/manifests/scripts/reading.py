"""A training script as the rules see it: names through their imports, assignments, conditions.

The script is never run. What its syntax tree alone does not tell is not known, and no finding
rests on it.
"""

from __future__ import annotations

import ast
import functools
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator

from launcher.manifests.checks.rules import Breach, Breaches
from launcher.manifests.scripts.rules import ScriptRule

Function = ast.FunctionDef | ast.AsyncFunctionDef
IGNORED = re.compile(r"#\s*launcher:\s*ignore\[([\w\s,-]*)\]")
ENVIRON = ("os.environ", "os.getenv", "os.environ.get", "os.environ.setdefault")
DEPTH = 4
"""How many names a value is followed through: enough for ``args.gpu``, a parameter, a helper."""


class Script:
    """A script's tree, and what is known of each name in it."""

    def __init__(self, tree: ast.Module, text: str, file: str) -> None:
        self.tree, self.file, self.lines = tree, file, text.splitlines()
        self.parents: dict[ast.AST, ast.AST] = {}
        self.imports: dict[str, str] = {}
        self.functions: dict[str, list[Function]] = defaultdict(list)
        self.classes: list[ast.ClassDef] = []
        self.loops: list[ast.For | ast.AsyncFor | ast.While] = []
        self.called: dict[str, list[ast.Call]] = defaultdict(list)
        """Calls by the last part of the name."""
        self._assigned: dict[tuple[ast.AST | None, str], list[ast.expr]] = defaultdict(list)
        nodes = self._walk()
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._add_import(node)
        for node in nodes:
            self._add(node)

    # -- making it ----------------------------------------------------------------------------

    def _walk(self) -> list[ast.AST]:
        """All nodes, in no order that counts."""
        nodes: list[ast.AST] = [self.tree]
        for node in nodes:
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                nodes.append(child)
        return nodes

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
            self.called[self.name(node.func).rpartition(".")[2]].append(node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._assign(node.optional_vars, node.context_expr)
        elif isinstance(node, Function):
            self.functions[node.name].append(node)
        elif isinstance(node, ast.ClassDef):
            self.classes.append(node)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            self.loops.append(node)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
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
        """``torch.distributed.barrier`` for ``dist.barrier``; ``?.cuda`` behind no plain name."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        head = self.imports.get(node.id, node.id) if isinstance(node, ast.Name) else "?"
        return ".".join((head, *reversed(parts)))

    def calls(self, last: str, *roots: str) -> list[ast.Call]:
        """The calls of that name, of these packages where they are named, by line."""
        found = [one for one in self.called.get(last, ()) if not roots or self.root(one) in roots]
        return sorted(found, key=lambda one: one.lineno)

    def root(self, node: ast.Call) -> str:
        """The package that a called name comes from; its first part where it is not imported."""
        return self.name(node.func).partition(".")[0]

    def function_of(self, node: ast.AST) -> Function | None:
        """The function that a node is in; None at the top of the script."""
        above = self.parents.get(node)
        while above is not None and not isinstance(above, Function):
            above = self.parents.get(above)
        return above

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class that a node is in."""
        above = self.parents.get(node)
        while above is not None and not isinstance(above, ast.ClassDef):
            above = self.parents.get(above)
        return above

    def bases(self, one: ast.ClassDef, depth: int = DEPTH) -> set[str]:
        """The full names of a class' bases, through classes of this script."""
        names = {self.name(base) for base in one.bases}
        for other in self.classes if depth else ():
            if other.name in names and other is not one:
                names |= self.bases(other, depth - 1)
        return names

    # -- values -------------------------------------------------------------------------------

    def values(self, node: ast.AST) -> list[ast.expr]:
        """What is assigned to a name, given for a parameter, or returned by a call."""
        if isinstance(node, ast.Attribute):
            return self._assigned.get((None, self.name(node)), [])
        if isinstance(node, ast.Name):
            scope = self.function_of(node)
            while scope is not None:
                if found := self._assigned.get((scope, node.id)) or self._given(scope, node.id):
                    return found
                scope = self.function_of(scope)
            return self._assigned.get((None, node.id), [])
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            at = node.slice.value
            rows = [one for one in self.values(node.value) if isinstance(one, ast.Tuple)]
            return [row.elts[at] for row in rows if isinstance(at, int) and at < len(row.elts)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            made = self.functions.get(node.func.id, ())
            return [one for function in made for one in self._returned[function]]
        return []

    @functools.cached_property
    def _returned(self) -> dict[Function, list[ast.expr]]:
        found: dict[Function, list[ast.expr]] = defaultdict(list)
        for node in self.parents:
            if isinstance(node, ast.Return) and node.value is not None:
                function = self.function_of(node)
                if function is not None:
                    found[function].append(node.value)
        return found

    def _given(self, function: Function, name: str) -> list[ast.expr]:
        """What the calls of a function give for one of its parameters."""
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        if name not in names and name not in [one.arg for one in function.args.kwonlyargs]:
            return []
        names = names[1:] if names[:1] == ["self"] else names
        found = []
        for call in self.called.get(function.name, ()):
            at = names.index(name) if name in names else len(call.args)
            plain = [one for one in call.args if not isinstance(one, ast.Starred)]
            found += [plain[at]] if at < len(plain) == len(call.args) else []
            found += [one.value for one in call.keywords if one.arg == name]
        return found

    def reach(self, node: ast.AST, depth: int = DEPTH) -> Iterator[ast.AST]:
        """A node with all that is in it, and in the values of its names."""
        seen: set[ast.AST] = set()
        todo = [(node, depth)]
        while todo:
            one, left = todo.pop()
            if one in seen:
                continue
            seen.add(one)
            yield one
            todo += [(child, left) for child in ast.iter_child_nodes(one)]
            todo += [(value, left - 1) for value in self.values(one)] if left else []

    def variable_read(self, node: ast.AST) -> str:
        """The variable of the environment that an expression reads; empty where it reads none."""
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript) and self.name(node.value) == "os.environ":
            key = node.slice
        elif isinstance(node, ast.Call) and node.args and self.name(node.func) in ENVIRON:
            key = node.args[0]
        return str(key.value) if isinstance(key, ast.Constant) else ""

    # -- conditions ---------------------------------------------------------------------------

    def conditions(self, node: ast.AST) -> Iterator[ast.expr]:
        """The tests that decide, in its function, whether a node is reached."""
        while (above := self.parents.get(node)) is not None:
            if isinstance(above, ast.If | ast.IfExp | ast.While) and node is not above.test:
                yield above.test
            elif isinstance(above, ast.BoolOp):
                yield from above.values[: above.values.index(node)]  # type: ignore[arg-type]
            for block in ("body", "orelse", "finalbody"):
                inside = getattr(above, block, None)
                if isinstance(inside, list) and node in inside:
                    before = inside[: inside.index(node)]
                    yield from (one.test for one in before if _leaves(one))
            if isinstance(above, Function):
                return
            node = above

    def contexts(self, node: ast.AST) -> Iterator[str]:
        """The names of the context managers and decorators around a node."""
        while (above := self.parents.get(node)) is not None:
            if isinstance(above, ast.With | ast.AsyncWith):
                yield from (self.name(_called(item.context_expr)) for item in above.items)
            elif isinstance(above, Function):
                yield from (self.name(_called(one)) for one in above.decorator_list)
            node = above

    def callers(self, node: ast.AST) -> list[ast.Call]:
        """The calls, from elsewhere, of the function that a node is in."""
        function = self.function_of(node)
        if function is None:
            return []
        found = self.called.get(function.name, [])
        return [call for call in found if self.function_of(call) is not function]

    # -- findings -----------------------------------------------------------------------------

    def hit(self, rule: ScriptRule, node: ast.expr | ast.stmt, what: str, fix: str) -> Breaches:
        """A breach at a node, unless a comment there says to ignore it."""
        last = (node.end_lineno or node.lineno) if isinstance(node, ast.expr) else node.lineno
        for line in self.lines[node.lineno - 1 : last]:
            ignored = IGNORED.search(line)
            if ignored and rule.id in re.split(r"[\s,]+", ignored[1]):
                return
        where = f"{self.file}:{node.lineno}"
        yield Breach(rule=rule, where=where, line=node.lineno, what=what, fix=fix)


def argument(call: ast.Call, name: str, at: int = -1) -> ast.expr | None:
    """An argument by its keyword, or by its place where that is 0 or more."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    before = call.args[: at + 1]
    is_plain = not any(isinstance(one, ast.Starred) for one in before)
    return before[at] if 0 <= at < len(call.args) and is_plain else None


def is_open(call: ast.Call) -> bool:
    """Whether a call has arguments that are not written out: ``*args`` or ``**kwargs``."""
    starred = any(isinstance(one, ast.Starred) for one in call.args)
    return starred or any(keyword.arg is None for keyword in call.keywords)


def constant(node: ast.AST | None) -> object:
    """The value of a literal; None for anything else."""
    return node.value if isinstance(node, ast.Constant) else None


def shown(node: ast.AST) -> str:
    """A node's source on one line of a message."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


def _leaves(node: ast.stmt) -> bool:
    """Whether it is an ``if`` whose body skips what follows, without an error."""
    return isinstance(node, ast.If) and isinstance(
        node.body[-1], ast.Return | ast.Continue | ast.Break
    )


def parse_script(text: str, file: str) -> Script:
    """Raises ``SyntaxError`` or ``ValueError`` as Python does, and ``RecursionError``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as for "\d", which is the script's own affair
        return Script(ast.parse(text), text, file)
