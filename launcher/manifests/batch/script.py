"""A batch script: its options, what it assigns, and how it starts the training."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from launcher.manifests.batch.options import (
    GivenOption,
    Options,
    parse_slurm_options,
    parse_torchrun_options,
    split_sbatch_line,
)
from launcher.manifests.batch.shell import DEEPEST, MARKS, ShellCommand, ShellWord, parse_commands
from launcher.manifests.batch.values import Scope, assign_word, expand, expand_words

SBATCH = re.compile(r"^#SBATCH(?=\s|$)(.*)$", re.MULTILINE)
SUFFIXES = (".sbatch", ".slurm", ".sh", ".bash", ".batch")
TORCHRUN = "torchrun"
PYTHON = "python"
SRUN = "srun"
STARTERS = (SRUN, "mpirun", "mpiexec", "ssh", "pdsh", "clush", "parallel", "xargs", "prun")
"""Programs that start another one on other nodes, or several times."""
SHELLS = ("bash", "sh", "zsh")
SOURCES = ("source", ".")
HARMLESS_SOURCES = re.compile(r"(activate|conda\.sh|\.bashrc|\.profile|\.bash_profile|/etc/.*)$")
"""Files that set up a shell, and no training."""
STARTS_NOTHING = {
    *("echo", "printf", "which", "type", "command", "alias", "hostname", "nvidia-smi", "mkdir"),
    *("cat", "ls", "rm", "cp", "mv", "grep", "pkill", "pgrep", "killall", "pip", "pip3", "module"),
}
"""Programs that only name others, and leave the training alone."""
DECLARES = ("export", "declare", "typeset", "readonly", "local")
MODULES = ("torch.distributed.run", "torch.distributed.launch")


@dataclass(frozen=True, kw_only=True)
class Assigned:
    """A variable, its value, and where; ``on_node``: in a shell that runs on each node."""

    name: str
    value: str
    line: int
    on_node: bool
    is_exported: bool


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A command that starts the training: its program, by what it is started, and its options.

    ``starter`` is empty where the batch script's shell starts it on the first node. ``is_open``:
    some of its options stand in a variable whose value the script does not tell.
    """

    program: str
    line: int
    arguments: tuple[ShellWord, ...]
    starter: str
    srun: Options
    options: Options
    scope: Scope
    is_background: bool
    is_conditional: bool
    is_open: bool


@dataclass(frozen=True, kw_only=True)
class BatchScript:
    """What is known of a batch script; ``others`` are files that it runs or sources.

    ``has_steps``: something starts a launch on other nodes.
    """

    file: str
    text: str
    options: Options
    late: tuple[ShellWord, ...]
    launches: tuple[Launch, ...]
    assigned: tuple[Assigned, ...]
    commands: tuple[ShellCommand, ...]
    others: tuple[str, ...]
    has_steps: bool

    @property
    def has_options(self) -> bool:
        """Whether it has any; without, they are all given to sbatch, and nobody knows them here."""
        return bool(self.options)


def is_batch_script(text: str, file: str) -> bool:
    """By its suffix, or by its content where the suffix is none of YAML's."""
    suffix = PurePath(file).suffix.lower()
    if suffix in (".yaml", ".yml", ".json"):
        return False
    return suffix in SUFFIXES or text.startswith("#!") or bool(SBATCH.search(text))


def parse_batch_script(text: str, file: str) -> BatchScript:
    """Reads a batch script; nothing in it is an error here."""
    text = MARKS.sub("?", text.replace("\r\n", "\n"))
    commands = parse_commands(text)
    first = commands[0].line if commands else len(text)
    options: dict[str, GivenOption] = {}
    late = []
    for found in SBATCH.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if line < first:
            options |= parse_slurm_options(split_sbatch_line(found[1], line))[0]
        else:
            late.append(ShellWord(raw=found[1].strip(), line=line))
    walk = _Walk()
    walk.through(commands, Scope(), Started())
    return BatchScript(
        file=file,
        text=text,
        options=options,
        late=tuple(late),
        launches=tuple(walk.launches),
        assigned=tuple(walk.assigned),
        commands=commands,
        others=tuple(walk.others),
        has_steps=any(launch.starter for launch in walk.launches),
    )


@dataclass(frozen=True, kw_only=True)
class Started:
    """What a command is inside of: a starter such as srun, a background job, a condition."""

    starter: str = ""
    srun: Options | None = None
    is_background: bool = False
    is_conditional: bool = False
    depth: int = 0


class _Walk:
    """Goes through commands in their order and keeps what they assign and start."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.assigned: list[Assigned] = []
        self.others: list[str] = []

    def through(self, commands: Sequence[ShellCommand], scope: Scope, started: Started) -> None:
        if started.depth > DEEPEST:
            return
        for command in commands:
            inside = replace(
                started,
                is_background=started.is_background or command.is_background,
                is_conditional=started.is_conditional or command.depth > 0,
                depth=started.depth + 1,
            )
            self._command(command, scope, inside)

    def _command(self, command: ShellCommand, scope: Scope, started: Started) -> None:
        words = list(command.words)
        first = words[0].raw
        if first in DECLARES:
            self._assign([w for w in words[1:] if not w.raw.startswith("-")], scope, started, True)
            return
        if first in ("unset", "for", "select", "read", "mapfile", "readarray"):
            for word in words[1:]:
                scope.values.pop(word.raw, None)
            return
        leading = 0
        while leading < len(words) and re.match(r"[A-Za-z_]\w*(\[\w+\])?\+?=", words[leading].raw):
            leading += 1
        if leading == len(words):
            self._assign(words, scope, started, False)
            return
        if leading:
            scope = Scope(on_node=scope.on_node, values=dict(scope.values))
            self._assign(words[:leading], scope, started, True)
        self._run(expand_words(tuple(words[leading:]), scope), scope, started)

    def _assign(
        self, words: Sequence[ShellWord], scope: Scope, started: Started, exported: bool
    ) -> None:
        for word in words:
            name = assign_word(word.raw, scope, not started.is_conditional)
            if name is not None:
                value = expand(word.raw.partition("=")[2], scope)
                self.assigned.append(
                    Assigned(
                        name=name,
                        value=value,
                        line=word.line,
                        on_node=scope.on_node,
                        is_exported=exported,
                    )
                )

    def _run(self, words: Sequence[ShellWord], scope: Scope, started: Started) -> None:
        """Looks for the program behind everything that starts it."""
        at, first = 0, 0
        while at < len(words):
            name = PurePath(words[at].raw).name if not MARKS.search(words[at].raw) else ""
            rest = words[at + 1 :]
            if name in STARTERS and not started.starter:
                options, skipped = parse_slurm_options(rest) if name == SRUN else ({}, 0)
                started = replace(started, starter=name, srun=options)
                at += skipped
                first = at + 1
            elif at == first and name in STARTS_NOTHING:
                return
            elif name in SHELLS and rest and re.fullmatch(r"-[a-z]*c", rest[0].raw):
                self._shell(rest[1:2], scope, started)
                return
            elif name == "eval":
                text = " ".join(word.raw for word in rest)
                self.through(parse_commands(text, words[at].line), scope, started)
                return
            elif name in SOURCES and at == 0:
                self.others += [w.raw for w in rest[:1] if not HARMLESS_SOURCES.search(w.raw)]
                return
            elif launch := _parse_launch(words, at, scope, started):
                self.launches.append(launch)
                return
            elif re.search(r"\.(sh|bash|slurm|sbatch)$", words[at].raw) and at < 3:
                self.others.append(words[at].raw)
            at += 1
        if started.starter:
            self.others += [word.raw for word in words if MARKS.search(word.raw)][:1]

    def _shell(self, text: Sequence[ShellWord], scope: Scope, started: Started) -> None:
        """The commands of ``bash -c TEXT``, which run on each node if srun starts them."""
        on_node = scope.on_node or bool(started.starter)
        inner = Scope(on_node=on_node, values=dict(scope.values))
        for word in text:
            self.through(parse_commands(word.raw, word.line), inner, started)


def _parse_launch(
    words: Sequence[ShellWord], at: int, scope: Scope, started: Started
) -> Launch | None:
    """The launch whose program stands at a place; None if that is none."""
    program, rest = _find_program(words, at)
    if not program:
        return None
    options, skipped = parse_torchrun_options(rest) if program == TORCHRUN else ({}, 0)
    arguments = rest[skipped:]
    return Launch(
        program=program,
        line=words[at].line,
        arguments=tuple(arguments),
        starter=started.starter,
        srun=started.srun or {},
        options=options,
        scope=Scope(on_node=scope.on_node, values=dict(scope.values)),
        is_background=started.is_background,
        is_conditional=started.is_conditional,
        is_open=program == TORCHRUN and (not rest or _is_open(arguments)),
    )


def _find_program(words: Sequence[ShellWord], at: int) -> tuple[str, Sequence[ShellWord]]:
    """Which program stands at a place, empty for any other, and the words behind it."""
    name, rest = PurePath(words[at].raw).name, words[at + 1 :]
    if name == TORCHRUN:
        return TORCHRUN, rest
    if not re.fullmatch(r"python[\d.]*", name):
        return "", ()
    while rest and re.fullmatch(r"-[uOBEsSIq]+", rest[0].raw):
        rest = rest[1:]
    following = [word.raw for word in rest[:2]]
    if following[:1] == ["-m"] and following[1:] and following[1] in MODULES:
        return TORCHRUN, rest[2:]
    return (PYTHON, rest) if following and following[0].endswith(".py") else ("", ())


def _is_open(arguments: Sequence[ShellWord]) -> bool:
    """Whether a variable without a known value stands where the options end."""
    return bool(arguments) and MARKS.match(arguments[0].raw) is not None
