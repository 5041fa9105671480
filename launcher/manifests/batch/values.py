"""What words of a shell script mean, as far as the script alone tells. Nothing is run.

A value is a text in which marks stand for what only a run can tell: a variable that the script
does not set, or the output of a command. A mark tells too whether it is filled in by the batch
script's own shell or by a shell on each node.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from launcher.manifests.batch.shell import (
    END,
    END_RUN,
    HERE,
    HERE_RUN,
    MARKS,
    NODE,
    NODE_RUN,
    SPLIT,
    ShellWord,
    parse_commands,
    skip_quoted,
)

LONGEST = 4_000
"""Characters of a value; a variable that grows beyond has none."""
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_ARITHMETIC: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass
class Scope:
    """The variables of one shell; ``on_node`` where each node has a shell of its own."""

    on_node: bool = False
    values: dict[str, str] = field(default_factory=dict)

    def read(self, name: str) -> str:
        known = self.values.get(name)
        return (NODE if self.on_node else HERE) + name + END if known is None else known

    def assign(self, name: str, value: str, sure: bool) -> None:
        """Sets a variable; one that is set only sometimes has no value."""
        if len(value) > LONGEST or (not sure and self.values.get(name) != value):
            value = (NODE if self.on_node else HERE) + name + END
        self.values[name] = value

    def output_of(self, command: str) -> str:
        """The mark for what a command prints."""
        known = command if len(command) <= LONGEST else "..."
        return (NODE_RUN if self.on_node else HERE_RUN) + known + END_RUN


def expand(raw: str, scope: Scope) -> str:
    """A word's value: quotes removed, variables filled in."""
    out: list[str] = []
    at, quoted, size = 0, False, 0
    while at < len(raw):
        if size > len(raw) + 4 * LONGEST:
            return scope.output_of("...")
        char = raw[at]
        end = skip_quoted(raw, at)
        if char == '"':
            quoted = not quoted
            end = at + 1
        elif char == "'" and not quoted:
            out.append(raw[at + 1 : end - 1])
        elif char == "\\":
            keep = quoted and raw[at + 1 : at + 2] not in '$`"\\\n'
            out.append(raw[at:end] if keep else raw[at + 1 : end])
        elif char == "`":
            out.append(scope.output_of(_inside(raw[at + 1 : end - 1].replace("\\`", "`"), scope)))
        elif char in (HERE_RUN, NODE_RUN):
            out.append(raw[at:end])
        elif char == "$":
            value, end = _dollar(raw, at, scope)
            size += len(value)
            out.append(value if quoted and "[@]" not in raw[at:end] else _split(value))
        else:
            end = at + 1
            out.append(char)
        at = end
    return "".join(out)


def expand_words(words: tuple[ShellWord, ...], scope: Scope) -> list[ShellWord]:
    """The values of a command's words, where expansions without quotes make several of one."""
    found = []
    for word in words:
        for text in expand(word.raw, scope).split(SPLIT):
            if text or word.raw in ("''", '""'):
                found.append(ShellWord(raw=text, line=word.line))
    return found


def _split(value: str) -> str:
    """Blanks outside of marks become places where the word is split."""
    parts = re.split(f"([{HERE_RUN}{NODE_RUN}].*{END_RUN})", value, flags=re.DOTALL)
    return "".join(
        part if i % 2 else re.sub(r"\s+", SPLIT, part.strip()) for i, part in enumerate(parts)
    )


def _dollar(raw: str, at: int, scope: Scope) -> tuple[str, int]:
    """What ``$...`` at a place means, and the place behind it."""
    following = raw[at + 1 : at + 2]
    if raw.startswith("$((", at):
        end = skip_quoted(raw, at)
        return _arithmetic(raw[at + 3 : end - 2], scope), end
    if following == "(":
        end = skip_quoted(raw, at)
        return scope.output_of(_inside(raw[at + 2 : end - 1], scope)), end
    if following == "{":
        end = skip_quoted(raw, at)
        return _braces(raw[at + 2 : end - 1], scope), end
    if following in ("'", '"'):
        return "", at + 1
    name = _NAME.match(raw, at + 1)
    return (scope.read(name[0]), name.end()) if name else ("$", at + 1)


def _braces(inside: str, scope: Scope) -> str:
    """``${NAME}``, ``${NAME[0]}``, ``${NAME:-else}`` and their kind."""
    name = _NAME.match(inside)
    if name is None or (inside.startswith("#") and len(inside) > 1):
        return scope.output_of(f"${{{inside}}}")
    value, rest = scope.read(name[0]), inside[name.end() :]
    if not rest or rest in ("[@]", "[*]"):
        return value
    if rest == "[0]":
        return value if MARKS.search(value) else value.split(" ")[0]
    is_set = name[0] in scope.values
    if rest.startswith((":-", "-")) and is_set and not MARKS.search(value):
        return value
    return scope.output_of(f"${{{value}{rest}}}")


def _arithmetic(text: str, scope: Scope) -> str:
    """A sum of known numbers as a number, else a mark with its variables filled in."""
    filled = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda found: scope.read(found[1]), text)
    if not MARKS.search(filled) and re.fullmatch(r"[\d\s()+*/%-]{1,100}", filled):
        try:
            return str(_number(ast.parse(filled.strip().replace("/", "//"), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, KeyError, RecursionError):
            pass
    return scope.output_of(f"(({filled}))")


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp):
        return _ARITHMETIC[type(node.op)](_number(node.left), _number(node.right))
    raise ValueError(node)


def _inside(command: str, scope: Scope) -> str:
    """A substituted command with the known variables filled in, to be looked at, not parsed."""

    def fill(found: re.Match[str]) -> str:
        return scope.read(found[1] or found[2])

    if len(command) > LONGEST:
        return "..."
    return re.sub(r"\$(?:\{([A-Za-z_]\w*)[^}]*\}|([A-Za-z_]\w*))", fill, command)


def variables_of(value: str, on_node: bool | None = None) -> set[str]:
    """The variables that a value depends on; ``on_node``: only those of such a shell."""
    opening = f"{HERE}{NODE}" if on_node is None else NODE if on_node else HERE
    return set(re.findall(f"[{opening}](\\w+){END}", value))


def commands_of(value: str, on_node: bool | None = None) -> list[str]:
    """The outermost commands whose output a value has, with the known variables filled in."""
    opening = HERE_RUN + NODE_RUN if on_node is None else NODE_RUN if on_node else HERE_RUN
    found, start, depth = [], 0, 0
    for at, char in enumerate(value):
        if char in (HERE_RUN, NODE_RUN):
            start = start if depth else at
            depth += 1
        elif char == END_RUN:
            depth -= 1
            if not depth and value[start] in opening:
                found.append(value[start + 1 : at])
    return found


def is_fixed(value: str) -> bool:
    """Whether the script alone tells the whole value."""
    return bool(value) and not MARKS.search(value)


def split_port(value: str) -> tuple[str, str]:
    """The host and the port of ``HOST:PORT``; the port is empty where none is written."""
    depth = 0
    for at in range(len(value) - 1, -1, -1):
        depth += (value[at] in END + END_RUN) - (value[at] in HERE + NODE + HERE_RUN + NODE_RUN)
        if value[at] == ":" and not depth:
            return value[:at], value[at + 1 :]
    return value, ""


def readable(value: str) -> str:
    """A value as people write it."""
    value = re.sub(f"[{HERE}{NODE}](\\w+){END}", r"$\1", value)
    return re.sub(f"[{HERE_RUN}{NODE_RUN}]", "$(", value).replace(END_RUN, ")").replace(SPLIT, " ")


def assign_word(raw: str, scope: Scope, sure: bool) -> str | None:
    """Carries out ``NAME=value``, or ``NAME=(...)``; the name, or None if it is something else."""
    found = re.match(r"([A-Za-z_]\w*)(\[\w+\])?(\+?)=", raw)
    if found is None:
        return None
    name, value = found[1], raw[found.end() :]
    if value.startswith("("):
        words = expand_words(tuple(w for c in parse_commands(value[1:-1]) for w in c.words), scope)
        text = " ".join(word.raw for word in words)
    else:
        text = expand(value, scope).replace(SPLIT, " ")
    if found[3]:
        text = f"{scope.read(name)} {text}" if value.startswith("(") else scope.read(name) + text
    scope.assign(name, text, sure and not found[2])
    return name
