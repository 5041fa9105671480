"""Rules for the end of a job's time: the signal before it, the trap, and the requeue."""

from __future__ import annotations

import re

from launcher.manifests.batch.options import GivenOption
from launcher.manifests.batch.rules import BatchRule, hit_line
from launcher.manifests.batch.script import SRUN, TORCHRUN, BatchScript
from launcher.manifests.checks.rules import Breaches

NUMBERS = {"1": "HUP", "2": "INT", "10": "USR1", "12": "USR2", "15": "TERM"}
DEADLY_FOR_TORCHRUN = ("USR1", "USR2")
"""Signals that torchrun does not handle, by whose default a process ends."""


def check_end(script: BatchScript) -> Breaches:
    """A job that starts a training: what happens at its time limit."""
    if not script.launches:
        return
    limit, signal = script.options.get("time"), script.options.get("signal")
    if signal is None and limit is not None and limit.value.upper() not in ("UNLIMITED", "0"):
        what = f"--time={limit.value} without --signal"
        fix = (
            "#SBATCH --signal=B:USR1@120, a trap that has a checkpoint saved, and #SBATCH --requeue"
        )
        yield hit_line(BatchRule.NO_SIGNAL, script, limit.line, what, fix)
    if signal is not None:
        yield from _check_signal(script, signal)
    yield from _check_requeue(script)


def _check_signal(script: BatchScript, signal: GivenOption) -> Breaches:
    target, colon, rest = signal.value.rpartition(":")
    name = _signal_name(rest.partition("@")[0])
    starts_steps = re.search(r"\bsrun\b", script.text) is not None
    if "B" in target.upper() and colon:
        yield from _check_trap(script, signal, name)
    elif not starts_steps and not script.others:
        what = f"--signal={signal.value}, and no srun"
        fix = f"srun in front of the program, or --signal=B:{rest} and a trap"
        yield hit_line(BatchRule.SIGNAL_REACHES_NOBODY, script, signal.line, what, fix)
    elif name in DEADLY_FOR_TORCHRUN:
        for launch in script.launches:
            handled = launch.options.get("signals-to-handle")
            if launch.program != TORCHRUN or launch.starter != SRUN or handled:
                continue
            what = f"--signal={signal.value} with srun torchrun"
            fix = f"--signal=TERM@{rest.partition('@')[2] or 60}, or B:{rest} and a trap"
            yield hit_line(BatchRule.SIGNAL_ENDS_TORCHRUN, script, signal.line, what, fix)
            return


def _check_trap(script: BatchScript, signal: GivenOption, name: str) -> Breaches:
    if script.others or any(word.raw == "exec" for one in script.commands for word in one.words):
        return
    if name not in _trapped(script):
        what = f"--signal={signal.value}, and no trap for {name}"
        fix = f"trap 'scontrol requeue $SLURM_JOB_ID' {name}, above srun ... & wait"
        yield hit_line(BatchRule.SIGNAL_UNTRAPPED, script, signal.line, what, fix)
        return
    for launch in script.launches:
        if not launch.is_background:
            what = f"{launch.starter or launch.program} in the foreground, with a trap for {name}"
            yield hit_line(BatchRule.TRAP_LATE, script, launch.line, what, "srun ... & wait")


def _trapped(script: BatchScript) -> set[str]:
    traps = [one.words[1:] for one in script.commands if one.words[0].raw == "trap"]
    return {_signal_name(word.raw) for words in traps for word in words}


def _signal_name(text: str) -> str:
    name = text.upper().strip("'\"").removeprefix("SIG")
    return NUMBERS.get(name, name)


def _check_requeue(script: BatchScript) -> Breaches:
    signal, requeue = script.options.get("signal"), script.options.get("requeue")
    refused = script.options.get("no-requeue")
    if refused is not None and re.search(r"\bscontrol\s+requeue\b", script.text):
        what = "--no-requeue, and scontrol requeue in the script"
        yield hit_line(BatchRule.NO_REQUEUE_WANTED, script, refused.line, what, "#SBATCH --requeue")
    resubmits = re.search(r"^[^#\n]*\bsbatch\s", script.text, re.MULTILINE)
    if signal is not None and requeue is None and refused is None and not resubmits:
        what = f"--signal={signal.value} without --requeue"
        yield hit_line(BatchRule.NO_REQUEUE, script, signal.line, what, "#SBATCH --requeue")
    mode = script.options.get("open-mode")
    if requeue is not None and (mode is None or mode.value != "append"):
        what = "--requeue without --open-mode=append"
        fix = "#SBATCH --open-mode=append"
        yield hit_line(BatchRule.LOG_OVERWRITTEN, script, requeue.line, what, fix)
