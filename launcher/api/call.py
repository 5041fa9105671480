"""What is wrong with a call of ``run`` from Python, told in Python's words. Starts nothing."""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.api.choose_target import rooms
from launcher.contract.errors import InputError
from launcher.job.script import is_script
from launcher.job.spec import JobSpec

OF_EVERY_TARGET = (
    *("nnodes", "nproc_per_node", "max_restarts", "image", "code", "set"),
    *("resume", "verbose"),
)
"""Keyword arguments of ``run`` that are options of ``launcher run``, without those of a target."""
SAME_START = 4
"""Letters from which on two names with the same beginning are taken to mean the same."""


def check_call(
    job: object, again: object, options: Mapping[str, object], *, takes: tuple[type, ...]
) -> None:
    """Raises ``InputError`` for what ``run`` cannot take in the place of a job, or as an option."""
    if job is not None and again is not None:
        what = f"run: again={again!r} names an earlier run, and {shown([job])} a job: one of them"
        raise InputError(what, f"run(again={again!r})")
    if job is None and again is None:
        raise InputError("run: no job", 'run("train.py"), run(Job(...)) or run(again="latest")')
    if job is not None:
        _check_job(job, takes)
    known = options_known()
    for name, value in options.items():
        if name not in known:
            raise InputError(f"run: {name}={value!r}: no such option", _fix(name, value, known))
        if isinstance(value, list | tuple) and name != "set":
            text = ",".join(map(str, value))
            raise InputError(f"run: {name}={value!r}: takes one value", f"{name}={text!r}")


def options_known() -> tuple[str, ...]:
    """The keyword arguments of ``run`` that become options of ``launcher run``."""
    parser = argparse.ArgumentParser(add_help=False)
    for room in rooms():
        room.add_options(parser, "job")
    long = [word[2:] for word in parser._option_string_actions if word.startswith("--")]
    return (*OF_EVERY_TARGET, *(word.replace("-", "_") for word in long))


def split_args(args: str | Sequence[object]) -> list[str]:
    """The words for the script. Raises ``InputError`` where they are neither text nor a list."""
    if isinstance(args, str):
        try:
            return shlex.split(args)
        except ValueError:
            fix = 'close the quotation, or give a list: args=["--lr", 0.1]'
            raise InputError(f"run: args={args!r}: a quotation is not closed", fix) from None
    if isinstance(args, bytes) or not isinstance(args, Sequence):
        what = f"run: args={args!r}: found {type(args).__name__}; accepted: a list, or one text"
        raise InputError(what, 'for example args=["--lr", 0.1] or args="--lr 0.1"')
    return [str(word) for word in args]


def shown(words: Sequence[object]) -> str:
    """The words as they would be written in Python, cut where they are long."""
    text = ", ".join(map(repr, words))
    return text if len(text) <= 100 else f"{text[:97]}..."


def _check_job(job: object, takes: tuple[type, ...]) -> None:
    accepted = "accepted: a Job, or the path of a script or job file"
    if not isinstance(job, takes):
        command = list(job) if isinstance(job, list | tuple) and job else "train.py"
        fix = f"run(Job(command={command!r}))"
        raise InputError(f"run: found {shown([job])}; {accepted}", fix)
    if not isinstance(job, str) or Path(job).exists():
        return
    has_args = any(is_script(word) for word in job.split()[:-1])
    if has_args or job.startswith("-"):
        raise InputError(f"run: found {job!r}; {accepted}", f"run(Job(command={job!r}))")


def _fix(name: str, value: object, known: Sequence[str]) -> str:
    if name in JobSpec.model_fields:
        return f"it is a key of the job: run(Job(..., {name}={value!r}))"
    alike = [one for one in known if one[:SAME_START] == name[:SAME_START]]
    close = [*difflib.get_close_matches(name, known, n=1, cutoff=0.7), *alike]
    meant = f"did you mean {close[0]}={value!r}? " if close else ""
    flag = f"--{name.replace('_', '-')}"
    return f"{meant}what is for the script goes into args: args={[flag, value]!r}"
