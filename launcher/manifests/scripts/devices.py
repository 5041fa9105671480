"""Rules of training scripts about devices: which GPU a process uses, and what lies on it."""

from __future__ import annotations

import ast
import re

from launcher.manifests.checks.rules import Breaches
from launcher.manifests.scripts.ranks import TrainingScript
from launcher.manifests.scripts.reading import DEPTH, argument, constant, shown
from launcher.manifests.scripts.rules import ScriptRule

LOCAL = 'int(os.environ["LOCAL_RANK"])'
SET_DEVICE = f"torch.cuda.set_device({LOCAL}) before anything is on a GPU"
NUMBERED = re.compile(r"cuda:\d+")
MAKES = {
    *("zeros", "ones", "full", "empty", "rand", "randn", "randint", "randperm", "arange", "eye"),
    *("linspace", "logspace", "tensor", "as_tensor", "from_numpy", "Tensor", "FloatTensor"),
}
TAKES = {"to", "type_as", "cuda", "tolist", "item", "numpy", "size", "dim", "numel", "shape"}
"""Attributes of a tensor that move it to where it is used, or that are not a tensor."""


def device_words(script: TrainingScript) -> list[tuple[ast.Call, ast.expr]]:
    """Every expression that names a device, with its call: ``.to(x)``, ``device=x``."""
    words = []
    for name in ("to", "cuda", "set_device", "device"):
        words += [(call, word) for call in script.calls(name) for word in call.args[:2]]
    for call in script.all_calls:
        given = (argument(call, "device"), argument(call, "map_location"))
        words += [(call, word) for word in given if word is not None]
    return words


def sets_device(script: TrainingScript) -> bool:
    """Whether a library, or a number that is not constant, chooses the whole process' GPU."""
    calls = (*script.calls("set_device"), *script.calls("set_device_index"))
    is_chosen = any(call.args and constant(call.args[0]) is None for call in calls)
    return is_chosen or bool(script.frameworks)


def chooses_by_rank(script: TrainingScript) -> bool:
    """Whether some device is made from a rank: ``f"cuda:{local_rank}"``, ``.to(rank)``."""
    for _, word in device_words(script):
        for node in script.reach(word, 2):
            parts = node.values if isinstance(node, ast.JoinedStr) else []
            if any(str(constant(part)).startswith("cuda:") for part in parts):
                return True
        if isinstance(word, ast.Name | ast.Attribute) and re.search("rank|gpu", shown(word)):
            return True
    return False


def check_first_gpu(script: TrainingScript) -> Breaches:
    """``.cuda()``, ``"cuda"`` and ``"cuda:0"``, where no process has been given its own GPU."""
    is_set = sets_device(script)
    chooses = is_set or chooses_by_rank(script)
    plain = set() if is_set else {call for call in script.calls("cuda") if not call.args}
    for call, word in device_words(script):
        of_number = script.name(call).endswith((".cuda", "cuda.set_device"))
        for node in ast.walk(word):
            value = constant(node)
            if value == "cuda" and not chooses:
                plain.add(call)
            is_number = type(value) is int and node is word and of_number
            is_number |= isinstance(value, str) and bool(NUMBERED.fullmatch(value))
            if is_number and not (chooses and script.conditions(node)):
                fix = "f\"cuda:{os.environ['LOCAL_RANK']}\""
                yield from script.hit(ScriptRule.FIRST_GPU, call, shown(call), fix)
    if plain:
        first, *others = sorted(plain, key=lambda node: node.lineno)
        more = f", and {len(others)} more like it" if others else ""
        what = f"{shown(first)}{more}, and no torch.cuda.set_device"
        yield from script.hit(ScriptRule.FIRST_GPU, first, what, SET_DEVICE)


def check_rank_as_device(script: TrainingScript) -> Breaches:
    """The global rank used as the number of a GPU, which each node counts by itself."""
    words = [word for _, word in device_words(script)]
    for call in script.wrapped_models:
        ids, output = argument(call, "device_ids", 1), argument(call, "output_device", 2)
        words += ids.elts if isinstance(ids, ast.List) else []
        words += [output] if output is not None else []
    for word in dict.fromkeys(words):
        parts = word.values if isinstance(word, ast.JoinedStr) else [word]
        if any(script.is_global_rank(getattr(part, "value", part) if part is not word else part)
               for part in parts):  # fmt: skip
            what = f"{shown(word)}, the rank among all processes, as the number of a GPU"
            yield from script.hit(ScriptRule.RANK_AS_DEVICE, word, what, LOCAL)


def check_data_parallel(script: TrainingScript) -> Breaches:
    """``nn.DataParallel``, unless it is the fallback of a script that has DDP or ranks too."""
    for call in script.calls("DataParallel", "torch"):
        tests = [test for test, _ in script.conditions(call)]
        is_way_out = bool(tests and script.wrapped_models)
        if not is_way_out and not any(script.has_to_do_with_ranks(test) for test in tests):
            fix = f"DistributedDataParallel(model, device_ids=[{LOCAL}])"
            yield from script.hit(ScriptRule.DATA_PARALLEL, call, shown(call), fix)


def check_nccl_without_device(script: TrainingScript) -> Breaches:
    """NCCL where neither the group nor the process knows its GPU, and something needs it."""
    needs = script.barriers or any(name.endswith(("_object", "_list")) for name in script.called)
    if sets_device(script) or (chooses_by_rank(script) and not needs):
        return
    for call in script.calls("init_process_group"):
        backend = argument(call, "backend", 0)
        is_nccl = any(constant(node) == "nccl" for node in script.reach(backend, 1))
        if is_nccl and argument(call, "device_id") is None:
            what = f"{shown(call)} without device_id, and no torch.cuda.set_device"
            yield from script.hit(ScriptRule.NCCL_WITHOUT_DEVICE, call, what, SET_DEVICE)


# -- tensors of a module --------------------------------------------------------------------------


def check_tensor_not_buffer(script: TrainingScript) -> Breaches:
    """A tensor that a module makes in ``__init__`` and uses later, when it may be on a GPU."""
    for cls in script.classes:
        if not any(base.endswith(("nn.Module", ".LightningModule")) for base in script.bases(cls)):
            continue
        starts = [f for f in cls.body if getattr(f, "name", "") == "__init__"]
        for node in (node for start in starts for node in ast.walk(start)):
            if not isinstance(node, ast.Assign) or not _makes_tensor(script, node.value):
                continue
            name = shown(node.targets[0])
            if name.startswith("self.") and _is_used_as_it_is(script, cls, starts[0], name):
                what = f"{name} is a tensor, and no buffer of {cls.name}"
                fix = f'self.register_buffer("{name[5:]}", ...)'
                yield from script.hit(ScriptRule.TENSOR_NOT_BUFFER, node, what, fix)


def _makes_tensor(script: TrainingScript, node: ast.expr, depth: int = 2 * DEPTH) -> bool:
    """Whether an expression makes a new tensor on the CPU."""
    inner: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        inner = [node.left, node.right]
    elif isinstance(node, ast.Name):
        inner = script.values(node)
    elif isinstance(node, ast.Subscript):
        inner = [node.value]
    elif isinstance(node, ast.Call) and argument(node, "device") is None:
        head, _, last = script.name(node).rpartition(".")
        if head == "torch" and last in MAKES:
            return True
        if head == "torch":
            inner = node.args
        elif isinstance(node.func, ast.Attribute) and last not in TAKES:
            inner = [node.func.value]
    return depth > 0 and any(_makes_tensor(script, part, depth - 1) for part in inner)


def _is_used_as_it_is(script: TrainingScript, cls: ast.ClassDef, start: ast.AST, name: str) -> bool:
    later = [
        node
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute)
        and f"self.{node.attr}" == name == shown(node)
        and script.function_of(node) is not start
    ]
    is_replaced = any(isinstance(node.ctx, ast.Store) for node in later)
    takes = [getattr(script.parents[node], "attr", "") in TAKES for node in later]
    return bool(later) and not is_replaced and not all(takes)
