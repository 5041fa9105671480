"""Commands as they are to be typed: this program's name, and the options that lead to a run.

Messages name a command by ``launcher WORD``; what is printed has the rest of what it takes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from launcher.commands.arguments import OVERRIDES, RUN_ROOT, shown
from launcher.commands.cluster import KUBERNETES

OF_RUNS = ("logs", "status", "stop", "scale", "report", "ps")
OTHERS = ("run", "render", "doctor", "check", "hosts", "play", "env", "schema")
COMMAND = re.compile(rf"(?<![\w./-])launcher ({'|'.join((*OF_RUNS, *OTHERS))})(?![\w-])")
PLUGIN = "kubectl-launcher"
KUBECTL = re.compile(
    r"(?<![\w./-])kubectl (?=(?:apply|auth|cluster-info|create|delete|describe|get|logs|patch)\b)"
)


def program_name() -> str:
    """How this command is called: by its name where a shell would find the same, else by path."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return "python -m launcher"
    if shutil.which(called.name) == str(called):
        return "kubectl launcher" if called.name == PLUGIN else called.name
    return shlex.quote(shown(called))


def spell(text: str, arguments: argparse.Namespace) -> str:
    """The text with each command in it as it is to be typed here."""
    program = program_name()
    options = _joined(_place_of_runs(arguments))

    def typed(match: re.Match[str]) -> str:
        word = match[1]
        return f"{program} {word}{options if word in OF_RUNS else ''}"

    lines = text.splitlines(keepends=True)
    return "".join(COMMAND.sub(typed, _spell_kubectl(line, arguments)) for line in lines)


def _spell_kubectl(line: str, arguments: argparse.Namespace) -> str:
    """With the cluster that was named; namespaces are in the commands already."""
    words = []
    for name in ("kubeconfig", "context"):
        value = getattr(arguments, name, None)
        if value is not None and f"--{name} " not in line:
            words += [f"--{name}", value]
    return KUBECTL.sub(lambda _: f"kubectl{_joined(words)} ", line)


def options_of_runs(arguments: argparse.Namespace) -> str:
    """What a command about a run takes to find it, with a blank before it; empty for nothing."""
    return _joined(_place_of_runs(arguments))


def options_of_job(arguments: argparse.Namespace) -> str:
    """What was given beside a job file, but target, machines and earlier run; with a blank."""
    words: list[str] = []
    for name in ("include", "exclude"):
        if value := getattr(arguments, name):
            words += [f"--{name}", value]
    words += ["--accept-new-host-keys"] if arguments.accept_new_host_keys else []
    for name in (*OVERRIDES, "kind", "namespace", "context", "kubeconfig"):
        if (value := getattr(arguments, name)) is not None:
            words += [f"--{name.replace('_', '-')}", value]
    for setting in arguments.set:
        words += ["--set", setting]
    return _joined([*words, *_runs_folder(arguments)])


def extra_of_job(arguments: argparse.Namespace) -> str:
    """The training's own arguments, with a blank before them."""
    return _joined(["--", *arguments.extra]) if arguments.extra else ""


def _place_of_runs(arguments: argparse.Namespace) -> list[str]:
    words = _runs_folder(arguments)
    if (file := getattr(arguments, "kubeconfig", None)) is not None:
        words += ["--kubeconfig", file]
    if arguments.command in OF_RUNS:
        # A run's folder remembers its cluster; a run without one is looked for where this was.
        if getattr(arguments, "on", None) == KUBERNETES and not arguments.is_plugin:
            words += ["--on", KUBERNETES]
        for name in ("context", "namespace"):
            if (value := getattr(arguments, name, None)) is not None:
                words += [f"--{name}", value]
    return words


def _runs_folder(arguments: argparse.Namespace) -> list[str]:
    usual = os.environ.get("LAUNCHER_RUNS", str(RUN_ROOT))
    with contextlib.suppress(OSError):
        if Path(arguments.runs).absolute() == Path(usual).absolute():
            return []
    return ["--runs", arguments.runs]


def _joined(words: list[str]) -> str:
    return "".join(f" {shlex.quote(word)}" for word in words)
