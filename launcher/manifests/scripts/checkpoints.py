"""Rules of training scripts about what they save and load."""

from __future__ import annotations

import ast
import re
from pathlib import PurePath

from launcher.manifests.checks.rules import Breaches
from launcher.manifests.scripts.ranks import Script
from launcher.manifests.scripts.reading import (
    DEPTH,
    argument,
    constant,
    is_open,
    shown,
)
from launcher.manifests.scripts.rules import ScriptRule

SAVES = re.compile(r"save|checkpoint|commit|Continuity", re.I)
LOADS = re.compile(
    r"resume|restore|load_?(latest_|last_)?(checkpoint|ckpt|state|snapshot)|torch\.load$"
    r"|fabric\.load$|checkpoint\.load|elastic",
    re.I,
)


def check_save_by_all(script: Script) -> Breaches:
    """``torch.save`` to a path that is the same for all ranks, by all of them."""
    for call in script.calls("save", "torch"):
        path = argument(call, "f", 1)
        if script.name(call) != "torch.save" or path is None or script.is_guarded(call):
            continue
        in_memory = any("BytesIO" in script.word(one) for one in script.reach(path))
        if not in_memory and not script.has_to_do_with_ranks(path):
            what, fix = f"{shown(call)} by every rank", "if rank == 0:, the rank of all nodes"
            yield from script.hit(ScriptRule.SAVE_BY_ALL, call, what, fix)


def check_load_without_weights_only(script: Script) -> Breaches:
    """``torch.load`` that does not say whether it may run code."""
    for call in script.calls("load", "torch"):
        is_said = argument(call, "weights_only") or argument(call, "pickle_module", 2)
        if script.name(call) == "torch.load" and not is_said and not is_open(call):
            fix = "weights_only=True for tensors and states, False for files that you trust"
            yield from script.hit(ScriptRule.LOAD_WITHOUT_WEIGHTS_ONLY, call, shown(call), fix)


def check_relative_checkpoint(script: Script) -> Breaches:
    """A file that is saved and loaded again, in whatever folder the script is started."""
    loads = [one for one in script.calls("load", "torch") if script.name(one) == "torch.load"]
    loaded = {_beginning(script, argument(call, "f", 0)) for call in loads}
    for call in () if script.called.get("chdir") else script.calls("save", "torch"):
        begins = _beginning(script, argument(call, "f", 1))
        is_there = PurePath(begins).is_absolute() or begins.startswith("~") or "://" in begins
        if script.name(call) == "torch.save" and begins in loaded - {""} and not is_there:
            fix = 'os.path.join(os.environ.get("CHECKPOINT_DIR", "."), "NAME")'
            what = f"{shown(call)}: a path that depends on the current folder"
            yield from script.hit(ScriptRule.RELATIVE_CHECKPOINT, call, what, fix)


def _beginning(script: Script, path: ast.AST | None, depth: int = DEPTH) -> str:
    """The text that a path begins with; empty where the script does not tell, or tells several."""
    while path is not None and not isinstance(path, ast.Constant):
        if isinstance(path, ast.JoinedStr):
            path = path.values[0]
        elif isinstance(path, ast.BinOp):
            path = path.left
        elif isinstance(path, ast.Call) and re.search(r"\b(join|Path)$", script.name(path)):
            path = path.args[0] if path.args else None
        else:
            found = script.values(path) if depth else []
            begins = {_beginning(script, one, depth - 1) for one in found}
            return begins.pop() if len(begins) == 1 else ""
    return str(constant(path) or "")


def saves_and_loads(script: Script) -> tuple[bool, bool]:
    """Whether names of what is called look like writing a checkpoint, and like reading one."""
    names = {script.name(call) for call in script.all_calls}
    return any(map(SAVES.search, names)), any(map(LOADS.search, names))


def check_no_checkpoint(script: Script) -> Breaches:
    """A training loop in a script that writes no checkpoint, or that never reads one."""
    saves, loads = saves_and_loads(script)
    loops = [loop for loop in script.loops if script.leads_to(loop, "backward")]
    is_started = any(script.word(node) == "__name__" for node in script.nodes)
    tops = [*loops, *(one for name in script.functions for one in script.called.get(name, ()))]
    is_started |= any(script.function_of(one) is None for one in tops)
    is_own = script.trains and not script.frameworks & {"lightning", "transformers", "composer"}
    if loops and is_own and is_started and not (saves and loads):
        what = "checkpoints are written and never read" if saves else "no checkpoint is written"
        fix = "save model, optimiser and step now and then, and load what is there at the start"
        loop = min(loops, key=lambda one: one.lineno)
        yield from script.hit(ScriptRule.NO_CHECKPOINT, loop, what, fix)
