"""Launch lines: torchrun, accelerate, horovodrun, mpirun, deepspeed, docker run and srun. Pure.

A line may hold several of them, each of which starts the next: ``docker run IMAGE torchrun ...``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.contract.errors import InputError
from launcher.manifests.batch.script import SUBSTITUTED
from launcher.manifests.imports.draft import Draft
from launcher.manifests.imports.programs import (
    ACCELERATE,
    DEEPSPEED,
    DOCKER,
    HOROVODRUN,
    LEFT,
    MPIRUN,
    NOWHERE,
    RANK,
    SBATCH,
    TORCHRUN,
    Program,
)

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::?-([^}]*))?\}?")
PYTHON = re.compile(r"python[0-9.]*")
LAUNCH_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torchelastic.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
AROUND = ("nohup", "time", "exec", "sudo", "env", "stdbuf", "unbuffer", "ibrun", "bash", "sh")
"""Programs that start the next word; with ``-c`` a shell's text is read on."""
OPERATORS = ("&&", "||", "|", ";", "&", ">", ">>", "2>&1", "2>", "&>", "<", "|&")
_OPERATOR = re.compile(r"&&|\|\||;(?=\s|$)|(?<=\s)&(?=\s|$)")
TEXT_KEYS = ("slurm.gpus_per_node", "slurm.gres", "slurm.time", "slurm.mem")
MEMORY = re.compile(r"(\d+(?:\.\d+)?)([bkmgBKMG]?)[bB]?")


@dataclass(frozen=True)
class LineReader:
    """Reads one line into a draft; ``known`` are variables whose values are known."""

    draft: Draft
    known: Mapping[str, str]

    def read(self, words: Sequence[str]) -> None:
        """A command with all that it starts. Raises ``InputError`` where it starts no training."""
        words = list(words)
        while words:
            name = words[0].rpartition("/")[2]
            assigned = ASSIGNMENT.fullmatch(words[0])
            if assigned:
                self._assign(assigned[1], self._filled(assigned[2]))
                words = words[1:]
            elif read := program_of(name):
                words = read(self, words[1:])
            elif name in AROUND:
                words = self._step_in(words)
            elif PYTHON.fullmatch(name):
                words = self._python(words[1:])
            else:
                self._script(words)
                return

    def read_all(self, words: Sequence[str]) -> None:
        """Commands behind each other (``cd x && torchrun ...``); reads the one that launches."""
        self.read(self._launch_of(words))

    def _launch_of(self, words: Sequence[str]) -> list[str]:
        commands: list[list[str]] = [[]]
        for word in words:
            if word in ("&&", ";", "||", "&"):
                commands.append([])
            else:
                commands[-1].append(word)
        launch = next((one for one in commands if launches(one)), commands[0])
        for one in commands:
            if one and one is not launch:
                self.draft.leave(" ".join(one), "a shell's: around launcher run, or in the image")
        return launch

    # -- programs ----------------------------------------------------------------------------------

    def options(self, program: Program, words: list[str]) -> tuple[dict[str, str], list[str]]:
        """Takes a program's options; those that need more than a key, and the words behind all."""
        special: dict[str, str] = {}
        for name, value, word in split_options(words, program):
            self.take(program, name, value, word, special)
        return special, words

    def take(
        self, program: Program, name: str, value: str, word: str, special: dict[str, str]
    ) -> None:
        """One option: its key, its reason to be left, or an entry of ``special``."""
        key = program.keys.get(name, "")
        value = self._filled(value)
        if key.startswith("="):
            special[key[1:]] = f"{special[key[1:]]}\n{value}" if key[1:] in special else value
        elif not key or key.startswith(LEFT):
            self.draft.leave(word, key[1:] or NOWHERE)
        elif VARIABLE.search(value):
            self.draft.leave(word, f"no value is known for it; it belongs to {key}")
        elif key.startswith("env."):
            self.draft.set_env(key[4:], value or "true")
        else:
            if key == "nnodes":
                value = value.replace("-", ":")  # as sbatch writes a range
            given = value if key in TEXT_KEYS else as_value(value)
            self.draft.put(key, given if value else name not in ("no-requeue",))

    def torchrun(self, words: list[str]) -> list[str]:
        special, rest = self.options(TORCHRUN, words)
        for pair in filter(None, special.get("rdzv_conf", "").split(",")):
            name, _, value = pair.partition("=")
            if name in ("join_timeout", "last_call_timeout", "read_timeout"):
                self.draft.put(f"rdzv.conf.{name}", as_value(value))
            else:
                self.draft.leave(
                    f"--rdzv-conf {pair}", "for engine: torchrun alone, under rdzv.conf"
                )
        return self._module_or_script(special, rest)

    def deepspeed(self, words: list[str]) -> list[str]:
        special, rest = self.options(DEEPSPEED, words)
        if include := special.get("include"):
            names = ",".join(part.partition(":")[0] for part in include.split("@"))
            self.draft.options += ["--include", names]
            if ":" in include:
                self.draft.leave(f"--include {include}", "GPUs of a host: write nproc_per_node")
        self._no_local_rank()
        return self._module_or_script(special, rest)

    def accelerate(self, words: list[str]) -> list[str]:
        if words[:1] == ["launch"]:
            words = words[1:]
        special, rest = self.options(ACCELERATE, words)
        self.share_processes(special.get("processes", ""))
        if config := special.get("accelerate_config"):
            why = f"import it too: {config} -- {' '.join(rest)}"
            self.draft.leave(f"--config_file {config}", why)
        if devices := special.get("devices"):
            why = "CUDA_VISIBLE_DEVICES around launcher run says it"
            self.draft.leave(f"--gpu_ids {devices}", why)
        return self._module_or_script(special, rest)

    def share_processes(self, processes: str) -> None:
        """``num_processes`` counts those of all machines."""
        nnodes = self.draft.keys.get("nnodes", 1)
        if processes.isdigit():
            self._share(int(processes), nnodes if isinstance(nnodes, int) else 1)

    def horovodrun(self, words: list[str]) -> list[str]:
        special, rest = self.options(HOROVODRUN, words)
        self._spread(special)
        least, most = special.get("least", ""), special.get("most", "")
        per_node = self.draft.keys.get("nproc_per_node", 1)
        if least.isdigit() and isinstance(per_node, int):
            top = int(most) if most.isdigit() else int(least)
            low, high = max(1, int(least) // per_node), max(1, top // per_node)
            self.draft.keys["nnodes"] = f"{low}:{high}" if high > low else low
        self.draft.leave(
            "horovod", "import fabric_train.horovod as hvd in the script: launcher docs horovod"
        )
        return rest

    def mpirun(self, words: list[str]) -> list[str]:
        special, rest = self.options(MPIRUN, words)
        for entry in filter(None, special.get("forwarded", "").split("\n")):
            name, equals, value = re.sub(r"\s+", "=", entry, count=1).partition("=")
            if equals:
                self.draft.set_env(name, value)
            else:
                self.draft.leave(f"-x {name}", f"write env.{name} with its value")
        self._spread(special)
        return rest

    def srun(self, words: list[str]) -> list[str]:
        special, rest = self.options(SBATCH, words)
        self.take_slurm(special)
        if "torchrun" not in " ".join(rest) and (tasks := special.get("tasks_per_node", "")):
            self.draft.put("nproc_per_node", as_value(tasks))
        return rest

    def take_slurm(self, special: Mapping[str, str]) -> None:
        """Options of sbatch and srun that are no key alone."""
        self.draft.put("slurm.kind", "allocation")
        for entry in filter(None, special.get("extra", "").split("\n")):
            self.draft.add("slurm.extra", entry)
        if image := special.get("pyxis"):
            self.draft.put("slurm.container", "pyxis")
            self.draft.put("slurm.image", image)
        for mount in filter(None, special.get("container_mounts", "").split(",")):
            self.draft.add("mounts", mount if mount.count(":") else f"{mount}:{mount}")

    def docker(self, words: list[str]) -> list[str]:
        if words[:1] != ["run"]:
            raise InputError(
                f"docker {' '.join(words[:1])}: it starts no training", "docker run ..."
            )
        special, rest = self.options(DOCKER, words[1:])
        for entry in filter(None, special.get("variable", "").split("\n")):
            name, equals, value = entry.partition("=")
            if equals:
                self._assign(name, value)
            else:
                self.draft.add("secrets", name)
        for mount in filter(None, special.get("volume", "").split("\n")):
            self._mount(mount)
        for mount in filter(None, special.get("mount", "").split("\n")):
            part = dict(pair.partition("=")[::2] for pair in mount.split(","))
            source = part.get("source", part.get("src", ""))
            target = part.get("target", part.get("dst", part.get("destination", "")))
            self._mount(f"{source}:{target}{':ro' if 'readonly' in part else ''}")
        for option, key, sign in (("label", "labels", "="), ("add_host", "extra_hosts", ":")):
            for pair in filter(None, special.get(option, "").split("\n")):
                name, _, value = pair.partition(sign)
                self.draft.keys.setdefault(f"docker.{key}", {})[name] = value
        gpus = special.get("gpus", "").strip("\"'")
        if gpus.isdigit():
            self.draft.put("resources.gpus", int(gpus))
        elif gpus.startswith("device="):
            ids = gpus.removeprefix("device=")
            self.draft.put("devices", ids if "," in ids else f"{ids},")
        elif gpus:
            self.draft.leave(f"--gpus {gpus}", "a node takes as many as it has processes")
        for key in ("resources.shm", "resources.memory"):
            if found := MEMORY.fullmatch(str(self.draft.keys.get(key, ""))):
                unit = {"": "", "b": "", "k": "Ki", "m": "Mi", "g": "Gi"}[found[2].lower()]
                self.draft.keys[key] = f"{found[1]}{unit}"
        if not rest:
            raise InputError("docker run: no image", "the whole line, quoted")
        self.draft.put("image", self._filled(rest[0]))
        return [*special.get("entrypoint", "").split(), *rest[1:]]

    # -- what they start ---------------------------------------------------------------------------

    def _step_in(self, words: list[str]) -> list[str]:
        if words[0].rpartition("/")[2] in ("bash", "sh"):
            at = next((i for i, w in enumerate(words) if re.fullmatch(r"-\w*c", w)), None)
            if at is not None and at + 1 < len(words):
                return self._launch_of(split_line(words[at + 1]))
        rest = words[1:]
        while rest and rest[0].startswith("-"):
            self.draft.leave(f"{words[0]} {rest[0]}", NOWHERE)
            rest = rest[1:]
        return rest

    def _python(self, words: list[str]) -> list[str]:
        while words and words[0].startswith("-") and words[0] != "-m":
            self.draft.leave(f"python {words[0]}", "env.PYTHONUNBUFFERED and its kin say it")
            words = words[1:]
        if words[:1] == ["-m"] and len(words) > 1 and words[1] in LAUNCH_MODULES:
            if words[1] == "torch.distributed.launch" and not {"--use_env", "--use-env"} & {*words}:
                self._no_local_rank()
            return [LAUNCH_MODULES[words[1]], *words[2:]]
        self._script(words)
        return []

    def _no_local_rank(self) -> None:
        why = "the launcher gives LOCAL_RANK in the environment, as torchrun does"
        self.draft.leave("--local_rank, which this program adds", why)

    def _module_or_script(self, special: Mapping[str, str], rest: list[str]) -> list[str]:
        self._script((["-m"] if "module" in special else []) + rest)
        return []

    def _script(self, words: Sequence[str]) -> None:
        """The script or module, and its arguments up to what only a shell reads."""
        taken: list[str] = []
        for at, word in enumerate(words):
            if word in OPERATORS or re.match(r"[12&]?>", word):
                self.draft.leave(" ".join(words[at:]), "a shell's: around launcher run")
                break
            filled = self._filled(word)
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
        if name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK"):
            self.draft.leave(f"{name}={value}", RANK.replace("its rank", "this one"))
        elif name == "CUDA_VISIBLE_DEVICES":
            self.draft.leave(f"{name}={value}", "it stands around launcher run as well")
        elif VARIABLE.search(value) or "$(" in value:
            key = "checkpoint_dir" if name == "CHECKPOINT_DIR" else f"env.{name}"
            self.draft.leave(f"{name}={value}", f"no shell fills it in: write {key}")
        else:
            self.draft.set_env(name, value)

    def _filled(self, text: str) -> str:
        """With the variables that are known, and defaults of those that are not."""

        def fill(found: re.Match[str]) -> str:
            known = self.known.get(found[1])
            return found[0] if known is None and found[2] is None else known or found[2]

        return VARIABLE.sub(fill, text)

    def _mount(self, mount: str) -> None:
        for here in ("$PWD", "${PWD}", "$(pwd)"):
            mount = mount.replace(here, ".")
        source = mount.partition(":")[0]
        if "/" not in source and source != ".":
            self.draft.leave(f"-v {mount}", "a volume of Docker: mounts take folders")
        else:
            self.draft.add("mounts", mount)

    def _spread(self, special: Mapping[str, str]) -> None:
        """``-np`` over ``host:slots,...``; without hosts all are on this machine."""
        hosts = [part for part in special.get("machines", "").split(",") if part]
        names = list(dict.fromkeys(part.partition(":")[0] for part in hosts))
        slots = {part.partition(":")[2] for part in hosts}
        self.draft.put("hosts.inventory", ",".join(names))
        processes = special.get("processes", "")
        if len(slots) == 1 and (count := slots.pop()).isdigit():
            self.draft.put("nproc_per_node", int(count))
            self.draft.put("nnodes", len(names))
        if processes.isdigit():
            self._share(int(processes), max(1, len(names)))

    def _share(self, processes: int, nodes: int) -> None:
        per_node = self.draft.keys.get("nproc_per_node", 0)
        nodes = processes // per_node if per_node and processes % per_node == 0 else nodes
        if processes % max(1, nodes):
            why = f"{processes} processes are no equal number on each of {nodes} nodes"
            self.draft.leave(f"{processes} processes", why)
            return
        self.draft.put("nproc_per_node", processes // nodes)
        if nodes > 1:
            self.draft.put("nnodes", nodes)


Read = Callable[[LineReader, list[str]], list[str]]
PROGRAMS: tuple[tuple[str, Read], ...] = (
    ("torchrun", LineReader.torchrun),
    ("accelerate(-launch)?", LineReader.accelerate),
    ("deepspeed", LineReader.deepspeed),
    ("horovodrun", LineReader.horovodrun),
    ("mpirun|mpiexec", LineReader.mpirun),
    ("srun", LineReader.srun),
    ("docker|podman", LineReader.docker),
)
"""Patterns of names. Each function takes the words behind it, and gives those that it starts."""


def program_of(word: str) -> Read | None:
    """What reads the options of a program; None for one that launches no workers."""
    name = word.rpartition("/")[2]
    return next((read for pattern, read in PROGRAMS if re.fullmatch(pattern, name)), None)


def split_line(line: str) -> list[str]:
    """The words of a line of shell. Raises ``InputError`` where a quote has no end."""
    try:
        held: list[str] = []

        def hold(found: re.Match[str]) -> str:
            held.append(found[0])
            return f"\0{len(held) - 1}\0"

        # What another command prints is one word, whatever stands in it.
        line = re.sub(SUBSTITUTED, hold, line.replace("\\\n", " "))
        words = shlex.split(_OPERATOR.sub(r" \g<0> ", line))
        comment = next((at for at, word in enumerate(words) if word.startswith("#")), len(words))
        return [
            re.sub("\0(\\d+)\0", lambda found: held[int(found[1])], word)
            for word in words[:comment]
        ]
    except ValueError:
        raise InputError(
            f"a quotation without an end: {line[:60]!r}", "the whole line: it was cut"
        ) from None


def launches(words: Sequence[str]) -> bool:
    """Whether a command starts workers, by a program of ``PROGRAMS`` or by Python."""
    if any(map(program_of, words)) or {*words} & LAUNCH_MODULES.keys():
        return True
    starts = any(PYTHON.fullmatch(word.rpartition("/")[2]) for word in words)
    return starts and any(word.endswith(".py") for word in words)


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
            count = 2 if name in ("mca", "prtemca", "pmixmca", "genv") else 1
            takes = [words.pop(0) for _ in range(min(count, len(words))) if words]
            value = " ".join(takes)
            shown = f"{word} {value}"
        if name == "env" and program is MPIRUN and not equals and words:
            value = f"{value} {words.pop(0)}"
        yield name, value, shown


def as_value(text: str) -> Any:
    """A number where the text is one."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else text
