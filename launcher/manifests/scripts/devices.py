"""Rules of training scripts about devices: which GPU a process uses, and what lies on it."""

from __future__ import annotations

import ast
import re

from launcher.manifests.checks.rules import Breaches
from launcher.manifests.scripts.ranks import (
    barriers,
    frameworks,
    is_global_rank,
    words_of_ranks,
    wrapped_models,
)
from launcher.manifests.scripts.reading import DEPTH, Script, argument, constant, shown
from launcher.manifests.scripts.rules import ScriptRule

LOCAL = 'int(os.environ["LOCAL_RANK"])'
SET_DEVICE = f"torch.cuda.set_device({LOCAL}) before anything is on a GPU"
OWN_DEVICE = {
    *("lightning", "fabric", "accelerate", "deepspeed", "transformers", "composer", "ray"),
    *("ignite", "colossalai", "fastai", "mmengine", "torchtnt", "megatron"),
}
"""Libraries that set each process' GPU by themselves."""
NUMBERED = re.compile(r"cuda:\d+")
MAKES = {
    *("zeros", "ones", "full", "empty", "rand", "randn", "randint", "randperm", "arange"),
    *("linspace", "logspace", "eye", "tensor", "as_tensor", "from_numpy", "FloatTensor"),
    *("LongTensor", "Tensor", "zeros_like", "ones_like"),
}
TAKES = {"to", "type_as", "cuda", "to_device"}
"""Methods that bring a tensor to where it is used."""
NO_TENSOR = {"tolist", "item", "numpy", "size", "dim", "numel", "shape", "dtype", "ndim"}


def devices_set(script: Script) -> list[ast.Call]:
    """The calls that choose the process' GPU, by more than a number that is written there."""
    calls = [*script.calls("set_device"), *script.calls("set_device_index")]
    return [call for call in calls if call.args and constant(call.args[0]) is None]


def device_words(script: Script) -> list[tuple[ast.Call, ast.expr]]:
    """Every expression that names a device, with its call: ``.to(x)``, ``device=x``."""
    found = []
    for name in ("to", "cuda", "set_device"):
        found += [(call, call.args[0]) for call in script.calls(name) if call.args]
    for call in script.calls("device", "torch"):
        found += [(call, one) for one in call.args]
    for calls in script.called.values():
        for call in calls:
            given = (argument(call, "device"), argument(call, "map_location"))
            found += [(call, one) for one in given if one is not None]
    return found


def check_first_gpu(script: Script) -> Breaches:
    """``.cuda()``, ``"cuda"`` and ``"cuda:0"``, where no process has been given its own GPU."""
    is_set = bool(devices_set(script) or frameworks(script) & OWN_DEVICE)
    chooses = is_set or chooses_by_rank(script)
    plain: list[ast.expr] = [] if is_set else [one for one in script.calls("cuda") if not one.args]
    for call, word in device_words(script):
        for one in ast.walk(word):
            text = constant(one)
            if text == "cuda" and not chooses:
                plain.append(call)
            is_number = (
                type(text) is int and one is word and script.name(call.func) != "torch.device"
            )
            takes_number = script.name(call.func).rpartition(".")[2] in ("cuda", "set_device")
            if (isinstance(text, str) and NUMBERED.fullmatch(text)) or (is_number and takes_number):
                if not (chooses and any(True for _ in script.conditions(one))):
                    yield from script.hit(
                        ScriptRule.FIRST_GPU, call, f"{shown(call)}: one GPU by number",
                        'device = f"cuda:{os.environ[\'LOCAL_RANK\']}"',
                    )  # fmt: skip
    plain = sorted(set(plain), key=lambda one: one.lineno)
    if plain:
        others = len({one.lineno for one in plain} - {plain[0].lineno})
        more = f", and on {others} more line{'' if others == 1 else 's'}" if others else ""
        what = f"{shown(plain[0])}{more}, and no torch.cuda.set_device"
        yield from script.hit(ScriptRule.FIRST_GPU, plain[0], what, SET_DEVICE)


def chooses_by_rank(script: Script) -> bool:
    """Whether some device is made from a rank: ``f"cuda:{local_rank}"``, ``.to(rank)``."""
    for _, word in device_words(script):
        for one in script.reach(word, 2):
            if isinstance(one, ast.JoinedStr) and any(
                str(constant(part)).startswith("cuda:") for part in one.values
            ):
                return True
        if isinstance(word, ast.Name | ast.Attribute) and re.search("rank|gpu", shown(word)):
            return True
    return False


def check_rank_as_device(script: Script) -> Breaches:
    """The global rank where a node counts its own GPUs."""
    words = [word for _, word in device_words(script)]
    for call in wrapped_models(script):
        ids = argument(call, "device_ids", 1)
        words += ids.elts if isinstance(ids, ast.List) else []
        output = argument(call, "output_device", 2)
        words += [output] if output is not None else []
    for word in dict.fromkeys(words):
        parts = [word]
        if isinstance(word, ast.JoinedStr):
            parts = [one.value for one in word.values if isinstance(one, ast.FormattedValue)]
        if any(is_global_rank(script, one) for one in parts):
            what = f"{shown(word)} is the rank among all processes, and names a GPU here"
            yield from script.hit(ScriptRule.RANK_AS_DEVICE, word, what, LOCAL)


def check_data_parallel(script: Script) -> Breaches:
    """``nn.DataParallel``, unless it is the way out of a script that has DDP too."""
    for call in script.calls("DataParallel", "torch"):
        if not (wrapped_models(script) and any(True for _ in script.conditions(call))):
            fix = f"DistributedDataParallel(model, device_ids=[{LOCAL}])"
            yield from script.hit(ScriptRule.DATA_PARALLEL, call, shown(call), fix)


def check_nccl_without_device(script: Script) -> Breaches:
    """NCCL where neither the group nor the process knows its GPU, and something needs it."""
    if devices_set(script) or frameworks(script) & OWN_DEVICE:
        return
    objects = [name for name in script.called if name.endswith(("_object", "_object_list"))]
    if chooses_by_rank(script) and not (objects or any(True for _ in barriers(script))):
        return
    for call in script.calls("init_process_group"):
        backend = argument(call, "backend", 0)
        is_nccl = any(constant(one) == "nccl" for one in script.reach(backend or call, 1))
        if is_nccl and argument(call, "device_id") is None:
            what = f"{shown(call)} without device_id, and no torch.cuda.set_device"
            yield from script.hit(ScriptRule.NCCL_WITHOUT_DEVICE, call, what, SET_DEVICE)


def check_visible_devices(script: Script) -> Breaches:
    """CUDA_VISIBLE_DEVICES set to something that is the same for all processes."""
    for at, name, value in variables_set(script):
        is_off = constant(value) in ("", "-1")
        if name == "CUDA_VISIBLE_DEVICES" and not is_off and not words_of_ranks(script, value):
            what = f"{name} is set to {shown(value)}"
            fix = "leave it out: launcher run --nproc-per-node says how many GPUs"
            yield from script.hit(ScriptRule.VISIBLE_DEVICES, at, what, fix)


def variables_set(script: Script) -> list[tuple[ast.stmt | ast.expr, str, ast.expr]]:
    """Every variable of the environment that is set: where, its name, its value."""
    found: list[tuple[ast.stmt | ast.expr, str, ast.expr]] = []
    for node in script.parents:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            target = node.targets[0]
            if script.name(target.value) == "os.environ":
                found.append((node, str(constant(target.slice)), node.value))
        elif isinstance(node, ast.Call) and script.name(node.func) == "os.putenv":
            found += [(node, str(constant(node.args[0])), node.args[1])] if node.args[1:] else []
        elif isinstance(node, ast.Call) and script.name(node.func) == "os.environ.update":
            for one in node.args:
                if isinstance(one, ast.Dict):
                    pairs = zip(one.keys, one.values, strict=True)
                    found += [(node, str(constant(key)), value) for key, value in pairs]
    return found


# -- tensors of a module --------------------------------------------------------------------------


def check_tensor_not_buffer(script: Script) -> Breaches:
    """A tensor that a module makes at its start and uses later, where it may be on a GPU."""
    for one in script.classes:
        ends = ("nn.Module", ".LightningModule", "nn.modules.Module")
        if not any(base.endswith(ends) for base in script.bases(one)):
            continue
        starts = [f for f in one.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"]
        for node in (node for start in starts for node in ast.walk(start)):
            if not isinstance(node, ast.Assign) or not makes_tensor(script, node.value):
                continue
            name = shown(node.targets[0])
            if name.startswith("self.") and _is_used_as_it_is(script, one, starts[0], name[5:]):
                fix = f'self.register_buffer("{name[5:]}", ...)'
                what = f"{name} is a tensor, and no buffer of {one.name}"
                yield from script.hit(ScriptRule.TENSOR_NOT_BUFFER, node, what, fix)


def makes_tensor(script: Script, node: ast.expr, depth: int = DEPTH) -> bool:
    """Whether an expression makes a new tensor on the CPU."""
    if depth == 0:
        return False
    if isinstance(node, ast.BinOp):
        return any(makes_tensor(script, one, depth - 1) for one in (node.left, node.right))
    if isinstance(node, ast.Subscript):
        return makes_tensor(script, node.value, depth - 1)
    if not isinstance(node, ast.Call):
        return False
    head, _, last = script.name(node.func).rpartition(".")
    if head == "torch":
        if argument(node, "device") is not None:
            return False
        return last in MAKES or any(makes_tensor(script, one, depth - 1) for one in node.args)
    if isinstance(node.func, ast.Attribute) and last not in TAKES | NO_TENSOR:
        return makes_tensor(script, node.func.value, depth - 1)
    return False


def _is_used_as_it_is(script: Script, one: ast.ClassDef, start: ast.AST, name: str) -> bool:
    uses = [
        node
        for node in ast.walk(one)
        if isinstance(node, ast.Attribute) and node.attr == name and shown(node.value) == "self"
    ]
    later = [node for node in uses if script.function_of(node) is not start]
    above = [getattr(script.parents[node], "attr", "") for node in later]
    is_replaced = any(isinstance(node.ctx, ast.Store) for node in later)
    return bool(later) and not is_replaced and not all(one in TAKES | NO_TENSOR for one in above)
