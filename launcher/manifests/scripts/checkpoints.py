"""Rules of training scripts about what they save and load."""

from __future__ import annotations

import ast
import re

from launcher.manifests.checks.rules import Breaches
from launcher.manifests.scripts.ranks import (
    frameworks,
    is_distributed,
    is_guarded,
    trains,
    words_of_ranks,
)
from launcher.manifests.scripts.reading import Script, argument, is_open, shown
from launcher.manifests.scripts.rules import ScriptRule

SAVES = re.compile(r"save|checkpoint|commit|dump|Continuity", re.I)
LOADS = re.compile(r"resume|restore|load_?(latest_|last_)?(checkpoint|ckpt|state|snapshot|model)|torch\.load$"
                   r"|fabric\.load$|\.load_state|checkpoint\.load|from_pretrained|elastic", re.I)  # fmt: skip
MEMORY = re.compile(r"BytesIO|buf(fer)?$", re.I)


def check_save_by_all(script: Script) -> Breaches:
    """``torch.save`` to a path that is the same for all ranks, by all of them."""
    if not (trains(script) or is_distributed(script)):
        return
    for call in script.calls("save", "torch"):
        path = argument(call, "f", 1)
        if script.name(call.func) != "torch.save" or path is None or is_guarded(script, call):
            continue
        in_memory = any(MEMORY.search(script.name(one)) for one in script.reach(path))
        if not in_memory and not words_of_ranks(script, path):
            fix = "if rank == 0: (of all nodes, not of each)"
            yield from script.hit(ScriptRule.SAVE_BY_ALL, call, f"{shown(call)} by every rank", fix)


def check_load_without_weights_only(script: Script) -> Breaches:
    """``torch.load`` that does not say whether it may run code."""
    for call in script.calls("load", "torch"):
        is_said = argument(call, "weights_only") or argument(call, "pickle_module", 2)
        if script.name(call.func) == "torch.load" and not is_said and not is_open(call):
            fix = "weights_only=True for weights and states of optimisers, False for what you trust"
            what = f"{shown(call)} without weights_only"
            yield from script.hit(ScriptRule.LOAD_WITHOUT_WEIGHTS_ONLY, call, what, fix)


def check_no_checkpoint(script: Script) -> Breaches:
    """A training loop in a script that writes no checkpoint, or that never reads one."""
    if not trains(script) or frameworks(script) & {"lightning", "transformers", "composer"}:
        return
    names = {script.name(call.func) for calls in script.called.values() for call in calls}
    saves = any(SAVES.search(name) for name in names)
    loads = any(LOADS.search(name) for name in names)
    loop = min(
        (one for one in script.loops if _goes_back(script, one)),
        key=lambda one: one.lineno,
        default=None,
    )
    if loop is None or (saves and loads):
        return
    what = "checkpoints are written and never read" if saves else "no checkpoint is written"
    fix = "save model, optimiser and step now and then; at the start load what is there"
    yield from script.hit(ScriptRule.NO_CHECKPOINT, loop, f"{what} by this training", fix)


def _goes_back(script: Script, loop: ast.AST, depth: int = 3) -> bool:
    """Whether a loop trains, itself or in the functions that it calls."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Call):
            name = script.name(node.func).rpartition(".")[2]
            if name == "backward":
                return True
            if depth and any(
                _goes_back(script, f, depth - 1) for f in script.functions.get(name, ())
            ):
                return True
    return False
