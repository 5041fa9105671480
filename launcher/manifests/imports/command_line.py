"""Imports launch lines: torchrun, accelerate, horovodrun, mpirun, deepspeed, docker run and srun.
Pure.

A line may hold several of them, each of which starts the next: ``docker run IMAGE torchrun ...``.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.contract.errors import InputError
from launcher.manifests.imports.draft import Draft
from launcher.manifests.imports.programs import (
    ADDS_LOCAL_RANK,
    GIVEN,
    LEFT,
    NOWHERE,
    PROGRAMS,
    Program,
)

SUBSTITUTED = r"\$\((?:[^()]|\([^()]*+\))*+\)|`[^`]*+`"
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::?-([^}]*))?\}?")
PYTHON = re.compile(r"python[0-9.]*")
LAUNCH_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torchelastic.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
AROUND = ("nohup", "time", "exec", "sudo", "env", "stdbuf", "unbuffer", "ibrun", "bash", "sh")
"""Programs that start what follows them; the text of a shell's ``-c`` is read too."""
OPERATORS = ("&&", "||", "|", ";", "&", ">", ">>", "2>&1", "2>", "&>", "<", "|&")
_OPERATOR = re.compile(r"&&|\|\||;(?=\s|$)|(?<=\s)&(?=\s|$)")
TEXT_KEYS = ("slurm.gpus_per_node", "slurm.gres", "slurm.time", "slurm.mem")
MEMORY = re.compile(r"(\d+(?:\.\d+)?)([kmg]?)b?")

Special = dict[str, list[str]]
"""The values of options that need more than a key, by the names in ``programs``."""


@dataclass(frozen=True)
class LineReader:
    """Reads one line into a draft; ``known`` are variables whose values are known."""

    draft: Draft
    known: Mapping[str, str]

    def read_command(self, words: Sequence[str]) -> None:
        """Reads a command and all that it starts. Raises ``InputError`` if that is no training."""
        words = list(words)
        while words:
            name = words[0].rpartition("/")[2]
            if assigned := ASSIGNMENT.fullmatch(words[0]):
                self._assign(assigned[1], self.filled(assigned[2]))
                words = words[1:]
            elif program := program_of(name):
                words = self._start(program, words[1:])
            elif name in AROUND or PYTHON.fullmatch(name):
                words = self._step_in(name, words[1:])
            else:
                self._script(words)
                return

    def read_all(self, words: Sequence[str]) -> None:
        """Of several commands (``cd x && torchrun ...``), reads the one that launches."""
        self.read_command(self._launch_of(words))

    def _launch_of(self, words: Sequence[str]) -> list[str]:
        commands: list[list[str]] = [[]]
        for word in words:
            if word in ("&&", ";", "||", "&"):
                commands.append([])
            else:
                commands[-1].append(word)
        launch = next((argv for argv in commands if launches(argv)), commands[0])
        for argv in commands:
            if argv and argv is not launch:
                self.draft.leave(" ".join(argv), "a shell's: around launcher run, or in the image")
        return launch

    # -- programs ----------------------------------------------------------------------------------

    def options(self, program: Program, words: list[str]) -> tuple[Special, list[str]]:
        """Takes a program's options. Returns those that need more than a key, and what follows."""
        special: Special = defaultdict(list)
        for name, value, word in split_options(words, program):
            self.convert(program, name, value, word, special)
        return special, words

    def convert(self, program: Program, name: str, value: str, word: str, special: Special) -> None:
        """One option: its key, its reason to be left, or an entry of ``special``."""
        key = program.keys.get(name, "")
        value = self.filled(value)
        if key.startswith("@"):
            special[key[1:]].append(value)
        elif not key:
            self.draft.leave(word, LEFT.get(name, NOWHERE))
        elif VARIABLE.search(value):
            self.draft.leave(word, f"no value is known for it; it belongs to {key}")
        elif key.startswith("env."):
            self.draft.set_env(key[4:], value or "true")
        else:
            if key == "nnodes":
                value = value.replace("-", ":")  # as sbatch writes a range
            given = value if key in TEXT_KEYS else as_value(value)
            self.draft.put(key, given if value else name != "no-requeue")

    def _start(self, program: Program, words: list[str]) -> list[str]:
        """Takes a program's options, and returns the words that it starts."""
        if program.verb and words[:1] != [program.verb]:
            name = program.names.partition("|")[0]
            what = f"{name} {' '.join(words[:1])}: it starts no training"
            raise InputError(what, f"{name} {program.verb} ...")
        special, rest = self.options(program, words[1:] if program.verb else words)
        for word, why in program.notes:
            self.draft.leave(word, why)
        for entry in special["variable"]:
            name, equals, value = re.sub(r"\s+", "=", entry, count=1).partition("=")
            if equals:
                self._assign(name, value)
            elif program.has_image:
                self.draft.add("secrets", name)
            else:
                self.draft.leave(f"-x {name}", f"write env.{name} with its value")
        self.spread(special)
        if program is PROGRAMS["srun"]:
            self.take_slurm(special)
            if "torchrun" not in " ".join(rest):
                self.draft.put("nproc_per_node", as_value(last(special, "tasks_per_node")))
        if program.has_image:
            return self._container(special, rest)
        return ["python", "-m", *rest] if special["module"] else rest

    def take_slurm(self, special: Special) -> None:
        """Takes the options of sbatch and srun that need more than a key."""
        self.draft.put("slurm.kind", "allocation")
        for entry in special["extra"]:
            self.draft.add("slurm.extra", entry)
        if image := last(special, "pyxis"):
            self.draft.put("slurm.container", "pyxis")
            self.draft.put("slurm.image", image)
        for mount in filter(None, last(special, "container_mounts").split(",")):
            self.draft.add("mounts", mount if mount.count(":") else f"{mount}:{mount}")

    def _container(self, special: Special, rest: list[str]) -> list[str]:
        for mount in special["volume"]:
            self._mount(mount)
        gpus = last(special, "gpus").strip("\"'")
        ids = gpus.removeprefix("device=")
        if gpus.isdigit():
            self.draft.put("resources.gpus", int(gpus))
        elif ids != gpus:
            self.draft.put("devices", ids if "," in ids else f"{ids},")
        elif gpus:
            self.draft.leave(f"--gpus {gpus}", "a node takes as many as it has processes")
        for key in ("resources.shm", "resources.memory"):
            # Docker writes 16g or 16gb for 16Gi.
            if match := MEMORY.fullmatch(str(self.draft.keys.get(key, "")).lower()):
                self.draft.keys[key] = match[1] + (f"{match[2].upper()}i" if match[2] else "")
        if not rest:
            raise InputError("docker run: no image", "the whole line, quoted")
        self.draft.put("image", self.filled(rest[0]))
        return [*last(special, "entrypoint").split(), *rest[1:]]

    # -- what they start ---------------------------------------------------------------------------

    def _step_in(self, name: str, words: list[str]) -> list[str]:
        """Returns what a shell, Python, or a program around another starts."""
        is_python = PYTHON.fullmatch(name)
        while words and words[0].startswith("-") and words[0] != "-m":
            flag, *words = words
            if name in ("bash", "sh") and flag.endswith("c") and words:
                return self._launch_of(split_line(words[0]))
            why = "env.PYTHONUNBUFFERED and its kin say it" if is_python else NOWHERE
            self.draft.leave(f"{name} {flag}", why)
        if words[:1] == ["-m"] and len(words) > 1 and words[1] in LAUNCH_MODULES:
            if words[1] == "torch.distributed.launch" and not {"--use_env", "--use-env"} & {*words}:
                self.draft.leave(*ADDS_LOCAL_RANK)
            return [*LAUNCH_MODULES[words[1]].split(), *words[2:]]
        if is_python:
            self._script(words)
        return [] if is_python else words

    def _script(self, words: Sequence[str]) -> None:
        """The script or module, and its arguments up to what only a shell reads."""
        taken: list[str] = []
        for at, word in enumerate(words):
            if word in OPERATORS or re.match(r"[12&]?>", word):
                self.draft.leave(" ".join(words[at:]), "a shell's: around launcher run")
                break
            filled = self.filled(word)
            if VARIABLE.search(filled) or "$(" in filled:
                self.draft.leave(filled, "no shell fills it in: write its value")
            taken.append(filled)
        if not taken or taken == ["-m"]:
            raise InputError(
                f"{self.draft.source}: the line ends before a script",
                "the whole line, in quotes or behind --, such as: -- torchrun train.py",
            )
        self.draft.put("command", taken)

    # -- parts -------------------------------------------------------------------------------------

    def _assign(self, name: str, value: str) -> None:
        why = GIVEN.get(name, "")
        if not why and (VARIABLE.search(value) or "$(" in value):
            key = "checkpoint_dir" if name == "CHECKPOINT_DIR" else f"env.{name}"
            why = f"no shell fills it in: write {key}"
        if why:
            self.draft.leave(f"{name}={value}", why)
        else:
            self.draft.set_env(name, value)

    def filled(self, text: str) -> str:
        """The text with the values of known variables, and the defaults of unknown ones."""
        return VARIABLE.sub(lambda it: self.known.get(it[1]) or it[2] or it[0], text)

    def _mount(self, mount: str) -> None:
        for here in ("$PWD", "${PWD}", "$(pwd)"):
            mount = mount.replace(here, ".")
        source = mount.partition(":")[0]
        if "/" not in source and source != ".":
            self.draft.leave(f"-v {mount}", "a volume of Docker: mounts take folders")
        else:
            self.draft.add("mounts", mount)

    def spread(self, special: Special) -> None:
        """Spreads ``-np`` over ``host:slots,...``, else over the nodes that are known."""
        hosts = [part.partition(":") for part in last(special, "machines").split(",") if part]
        names = list(dict.fromkeys(host for host, _, _ in hosts))
        slots = {count for _, _, count in hosts}
        self.draft.put("hosts.inventory", ",".join(names))
        if len(slots) == 1 and (count := slots.pop()).isdigit():
            self.draft.put("nproc_per_node", int(count))
            self.draft.put("nnodes", len(names))
        if not (number := last(special, "processes")).isdigit():
            return
        processes, per_node = int(number), self.draft.keys.get("nproc_per_node", 0)
        nodes = len(names) or self.draft.keys.get("nnodes", 1)
        nodes = processes // per_node if per_node and processes % per_node == 0 else nodes
        if not isinstance(nodes, int) or processes % max(1, nodes):
            why = f"{processes} processes are no equal number on each of {nodes} nodes"
            self.draft.leave(f"{processes} processes", why)
            return
        self.draft.put("nproc_per_node", processes // nodes)
        if nodes > 1:
            self.draft.put("nnodes", nodes)


def program_of(word: str) -> Program | None:
    """The program of that name; None for one that launches no workers."""
    name = word.rpartition("/")[2]
    return next((known for known in PROGRAMS.values() if re.fullmatch(known.names, name)), None)


def split_line(line: str) -> list[str]:
    """The words of a line of shell. Raises ``InputError`` where a quote has no end."""
    try:
        line = line.replace("\\\n", " ")
        # A command's substituted output is one word, whatever the command.
        held, number = re.findall(SUBSTITUTED, line), itertools.count()
        line = re.sub(SUBSTITUTED, lambda _: f"\0{next(number)}\0", line)
        words = shlex.split(_OPERATOR.sub(r" \g<0> ", line))
        words = list(itertools.takewhile(lambda word: not word.startswith("#"), words))
        return [re.sub("\0(\\d+)\0", lambda match: held[int(match[1])], word) for word in words]
    except ValueError:
        what = f"a quotation without an end: {line[:60]!r}"
        raise InputError(what, "the whole line: it was cut") from None


def has_launcher(words: Sequence[str]) -> bool:
    """Whether a program of ``PROGRAMS`` is among the words."""
    return any(map(program_of, words)) or bool({*words} & LAUNCH_MODULES.keys())


def launches(words: Sequence[str]) -> bool:
    """Whether a command starts workers, by a launcher or by Python."""
    is_python = any(PYTHON.fullmatch(word.rpartition("/")[2]) for word in words)
    return has_launcher(words) or (is_python and any(word.endswith(".py") for word in words))


def split_options(words: list[str], program: Program) -> Iterator[tuple[str, str, str]]:
    """Takes a program's options from the front of ``words``: long name, value, as written."""
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            return
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if not word.startswith("--") and name not in program.short and name[:1] in program.short:
            name, value, equals = name[:1], name[1:] + equals + value, "="
            equals = equals if value else ""
        name = program.short.get(name, name)
        shown = word
        if not equals and name not in program.flags:
            count = 2 if name in program.twos else 1
            value, words[:] = " ".join(words[:count]), words[count:]
            shown = f"{word} {value}"
        yield name, value, shown


def last(special: Special, name: str) -> str:
    """The last value that such an option was given; empty if it was not given."""
    return special[name][-1] if special[name] else ""


def as_value(text: str) -> Any:
    """A number where the text is one."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else text
