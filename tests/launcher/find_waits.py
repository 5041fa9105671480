"""Finds calls in the sources that may block, by syntax: the table of waits must name them all."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

BLOCKING = frozenset(
    (
        *("sigwait", "sigwaitinfo", "sigtimedwait", "wait_for_signal"),
        *("pause", "select", "epoll"),
        *("wait", "wait_for", "join", "sleep", "acquire", "barrier", "result", "exception"),
        *("flock", "lockf", "waitpid", "waitid", "wait4", "communicate", "serve_forever"),
        *("recv", "recvfrom", "recv_into", "accept", "connect", "create_connection", "sendall"),
        *("urlopen", "getresponse", "getaddrinfo", "gethostbyname", "getfqdn", "call_api"),
        *("stream", "readline", "read_frame", "write_frame", "input", "elastic_launch"),
        *("TCPStore", "ThreadPoolExecutor", "next_rendezvous", "load_kube_config", "from_env"),
    )
)
"""Names of functions and methods that wait for somebody else, whatever they are called on."""
OF_A_MODULE = {
    "subprocess": ("run", "call", "check_call", "check_output"),
    "os": ("read", "write", "wait", "popen", "system"),
    "requests": ("get", "post", "put", "request"),
    "queue": ("get", "put"),
}
STREAMS = (
    "stream",
    "_out",
    "outlet",
    "stdin",
    "stdout",
    "stderr",
    "_stream",
    "peer",
    "_store",
    "_output",
)
"""Receivers whose ``read``, ``get``, ``write`` and the like wait for the other end."""
ON_A_STREAM = ("read", "write", "flush", "get", "put", "set", "add", "check", "compare_set")
NO_WAITS = (
    *("os.path.join", "shlex.join", "posixpath.join", "CONTINUED.join"),
    *("future.exception", "log.exception"),
)
"""Beginnings of calls that only look like one: they join strings, or the work is done."""


def find_waits(folder: Path) -> dict[str, list[str]]:
    """Functions as ``module:Class.function``, each with what in it may block."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        for function, what in _find(ast.parse(path.read_text()), ()):
            found.setdefault(f"{module}:{function}", []).append(what)
    return found


def _find(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        inner = names
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = (*names, child.name)
        what = _what_blocks(child)
        if what:
            yield ".".join(names), what
        yield from _find(child, inner)


def _what_blocks(node: ast.AST) -> str:
    if isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and node.test.value:
        return "while True"
    if not isinstance(node, ast.Call):
        return ""
    text, function = ast.unparse(node), node.func
    if text.startswith(NO_WAITS):
        return ""
    if isinstance(function, ast.Name):
        return text if function.id in BLOCKING else ""
    if not isinstance(function, ast.Attribute):
        return ""
    on = ast.unparse(function.value)
    last = on.rpartition(".")[2]
    if function.attr == "join" and (isinstance(function.value, ast.Constant | ast.JoinedStr)):
        return ""
    known = function.attr in BLOCKING or function.attr in OF_A_MODULE.get(on, ())
    streamed = last in STREAMS and function.attr in ON_A_STREAM
    of_docker = last == "api" and function.attr.islower() and function.attr != "create_host_config"
    polled = function.attr == "poll" and "_poll" in on
    return text if known or streamed or of_docker or polled else ""


WALL = ("time.time()", ".wall()")


def find_clocks(folder: Path) -> dict[str, list[str]]:
    """Functions that reckon or compare with the time of day, which may be set at any time."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        for function, node in _walk(ast.parse(path.read_text()), ()):
            if isinstance(node, ast.BinOp | ast.Compare | ast.AugAssign):
                text = ast.unparse(node)
                if any(clock in text for clock in WALL):
                    found.setdefault(f"{module}:{function}", []).append(text)
    return found


def find_zero_times(folder: Path) -> dict[str, list[str]]:
    """Where 0 stands for an instant that never was: on a machine that has just been started it is
    one of a moment ago, and of days ago on others."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text()
        if "monotonic" not in source:
            continue
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        for function, node in _walk(ast.parse(source), ()):
            for text in _zero_instants(node):
                found.setdefault(f"{module}:{function}", []).append(text)
    return found


def _zero_instants(node: ast.AST) -> Iterator[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    value = getattr(node, "value", None)
    if targets and isinstance(value, ast.Constant) and value.value in (0, 0.0):
        for target in targets:
            if ast.unparse(target).endswith("_at"):
                yield ast.unparse(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        last = ast.unparse(node.func.value)
        default = node.args[-1] if len(node.args) == 2 else None
        if (
            node.func.attr == "get"
            and last.endswith(("_at", "_started"))
            and isinstance(default, ast.Constant)
            and default.value in (0, 0.0)
        ):
            yield ast.unparse(node)


def _walk(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        inner = names
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = (*names, child.name)
        yield ".".join(names), child
        yield from _walk(child, inner)
