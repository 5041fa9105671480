"""Every call of the launcher that may block has a limit, or a line that says who ends it."""

import ast
from collections.abc import Iterator
from pathlib import Path

LAUNCHER = Path(__file__).parents[2] / "launcher"
WITHOUT_ARGUMENTS = (
    "wait",
    "join",
    "result",
    "communicate",
    "acquire",
    "select",
    "accept",
    "input",
)
"""They block for as long as it takes, unless they are given something: a limit."""
ALWAYS = (
    *("recv", "recvfrom", "recv_into", "sendall", "connect"),
    *("getaddrinfo", "gethostbyname", "getfqdn", "readline"),
    *("signal.pause", "sigwait", "os.read", "urlopen", "subprocess.run"),
)
"""They block unless a keyword limits them."""
UNLESS = {"waitpid": "WNOHANG", "flock": "LOCK_NB", "lockf": "LOCK_NB"}
"""They block unless they are given this flag."""
LIMITS = {"timeout", "timeout_s", "limit_s"}
SAID = "# Ended by "


def blocks(call: ast.Call) -> bool:
    """Whether the call may wait for ever, as far as one can read it there."""
    if LIMITS & {keyword.arg for keyword in call.keywords}:
        return False
    name = ast.unparse(call.func)
    last = name.rpartition(".")[2]
    if name == "select.select":
        return len(call.args) < 4
    if last == "create_connection":
        return len(call.args) < 2
    if last in UNLESS:
        flags = ast.unparse(call)
        return UNLESS[last] not in flags and "LOCK_UN" not in flags
    return name in ALWAYS or last in ALWAYS or (last in WITHOUT_ARGUMENTS and not call.args)


def find_unsaid(source: str) -> Iterator[str]:
    """Calls that may block and have no line, there or right above, that says who ends them."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not blocks(node):
            continue
        above = node.lineno - 1
        while lines[above - 1].lstrip().startswith("#"):
            above -= 1
        if not any(SAID in line for line in lines[above : node.end_lineno]):
            yield f"{node.lineno}: {ast.unparse(node)}"


def test_every_call_that_may_block_has_a_limit_or_says_who_ends_it():
    found = {
        str(path.relative_to(LAUNCHER)): unsaid
        for path in sorted(LAUNCHER.rglob("*.py"))
        if (unsaid := list(find_unsaid(path.read_text())))
    }
    assert not found, f"give a limit, or write a comment '{SAID}...' above: {found}"


def test_a_call_without_a_limit_is_found():
    source = """
thread.join()
thread.join(2.0)
", ".join(words)
os.waitpid(pid, 0)
os.waitpid(pid, os.WNOHANG)
# Ended by the parent's end, which closes the pipe.
os.read(pipe, 1)
select.select([pipe], [], [])
"""
    assert [found.partition(":")[0] for found in find_unsaid(source)] == ["2", "5", "9"]
