"""What a script says about ranks, and which library takes them into its hands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.manifests.scripts.reading import DEPTH, ScriptTree, constant

LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric")
HOROVOD = ("horovod", "fabric_train")
RANK = re.compile(r"^(?!(lora|low)_).*(?<![a-z])rank(_id)?$|process_index$|procid$", re.I)
MAIN = re.compile(
    r"(is|on)_(main|master|chief|primary)|main_process|(master|chief)_(process|rank|proc|node)$"
    r"|global_zero$|rank_?(zero|0)$|is_first",
    re.I,
)
GLOBAL = re.compile(r"^(RANK|SLURM_PROCID|get_rank|global_rank|process_index)$")
WORDS = re.compile(
    r"rank(?!ing)|process_index|procid|global_zero|main_process|is_main|master_p", re.I
)
FIRST = re.compile(r"rank_zero|main_process|zero_first|master_only|rank_?0|main_only", re.I)
"""Decorators and context managers that let one rank go first or alone."""
OTHERS = {"composer", "ray", "ignite", "colossalai", "fastai", "mmengine", "torchtnt", "megatron"}
"""Libraries that are asked for by their import alone."""


def has_to_do_with_ranks(script: ScriptTree, node: ast.AST) -> bool:
    """Whether an expression, or what its names hold, mentions ranks at all. For precision."""
    return any(
        WORDS.search(script.word(one))
        or constant(one) in ("RANK", "LOCAL_RANK")
        or (isinstance(one, ast.Call) and script.root(one) in HOROVOD)
        for one in script.reach(node)
    )


def is_global_rank(script: ScriptTree, node: ast.AST, depth: int = DEPTH) -> bool:
    """Whether an expression is the rank among all workers, by what is assigned and called."""
    if GLOBAL.match(script.word(node)) and not isinstance(node, ast.Name):
        return True
    if isinstance(node, ast.Call):
        if script.name(node) in ("int", "str") and node.args:
            return is_global_rank(script, node.args[0], depth)
        last = script.last(node)
        if GLOBAL.match(last) or (script.root(node) in HOROVOD and last == "rank"):
            return True
    return depth > 0 and any(is_global_rank(script, o, depth - 1) for o in script.values(node))


def _is_rank(script: ScriptTree, node: ast.AST) -> bool:
    return any(RANK.search(script.word(one)) for one in script.reach(node, 2))


def is_rank_check(script: ScriptTree, test: ast.AST, depth: int = DEPTH) -> bool:
    """Whether a condition holds on some ranks and not on others."""
    if isinstance(test, ast.BoolOp):
        return any(is_rank_check(script, one, depth) for one in test.values)
    if isinstance(test, ast.UnaryOp):
        is_rank = bool(RANK.search(script.last(test.operand)))
        return is_rank or is_rank_check(script, test.operand, depth)
    if isinstance(test, ast.Compare):
        operands = (test.left, *test.comparators)
        # rank != -1, rank >= 0 and "RANK" in os.environ ask whether there are ranks at all.
        is_any = isinstance(test.ops[0], ast.GtE) and constant(test.comparators[0]) == 0
        is_any |= isinstance(test.ops[0], ast.Is | ast.IsNot)
        is_any |= any(
            ast.unparse(one) in ("-1", "None") or isinstance(constant(one), str) for one in operands
        )
        return not is_any and any(_is_rank(script, one) for one in operands)
    if MAIN.search(script.last(test)):
        return True
    return depth > 0 and any(is_rank_check(script, o, depth - 1) for o in script.values(test))


def rank_conditions(script: ScriptTree, node: ast.AST, depth: int = 3) -> list[tuple[str, bool]]:
    """What lets only some ranks reach a node, here or at all calls of its function."""
    tests = [one for one in script.conditions(node) if is_rank_check(script, one[0])]
    own = [(ast.unparse(test), way) for test, way in tests]
    callers = script.callers(node)
    if own or not callers or depth == 0:
        return own
    found = [rank_conditions(script, call, depth - 1) for call in callers]
    # Under different conditions, such as rank != 0 and then rank == 0, all ranks may reach it.
    return found[0] if all(one == found[0] for one in found) else []


def is_guarded(script: ScriptTree, node: ast.AST, depth: int = 3) -> bool:
    """Whether one rank reaches a node alone or first, as far as words tell. For precision."""
    tests = (test for test, _ in script.conditions(node))
    if any(is_rank_check(script, one) or has_to_do_with_ranks(script, one) for one in tests):
        return True
    if any(FIRST.search(name) for name in contexts(script, node)):
        return True
    callers = script.callers(node) if depth else []
    return bool(callers) and all(is_guarded(script, call, depth - 1) for call in callers)


def contexts(script: ScriptTree, node: ast.AST) -> Iterator[str]:
    """The names of the context managers and decorators around a node."""
    while (above := script.parents.get(node)) is not None:
        if isinstance(above, ast.With):
            yield from (script.name(item.context_expr) for item in above.items)
        elif isinstance(above, ast.FunctionDef):
            yield from (script.name(one) for one in above.decorator_list)
        node = above


def barriers(script: ScriptTree) -> list[ast.Call]:
    """All calls at which ranks wait for each other, and do no more."""
    return [*script.calls("barrier"), *script.calls("monitored_barrier"),
            *script.calls("wait_for_everyone")]  # fmt: skip


def frameworks(script: ScriptTree) -> set[str]:
    """Which of the libraries that take ranks, devices or data into their hands are used."""
    bases = {base for one in script.classes for base in script.bases(one)}
    roots = {name.partition(".")[0] for name in script.imports.values()}
    of_lightning = any(base.partition(".")[0] in LIGHTNING for base in bases)
    trainers = [name for name in (*script.called, *bases) if name.endswith("Trainer")]
    used = {
        "lightning": script.calls("Trainer", *LIGHTNING) or of_lightning,
        "fabric": script.calls("Fabric", *LIGHTNING),
        "accelerate": script.calls("Accelerator", "accelerate"),
        "deepspeed": script.calls("initialize", "deepspeed"),
        "transformers": trainers and roots & {"transformers", "trl", "sentence_transformers"},
    }
    return {name for name, is_used in used.items() if is_used} | (roots & OTHERS)


def wrapped_models(script: ScriptTree) -> list[ast.Call]:
    """The calls that make a DDP or FSDP model."""
    names = ("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard")
    return [call for name in names for call in script.calls(name, "torch")]


def trains(script: ScriptTree) -> bool:
    """Whether the script has a loop of its own that trains."""
    return bool(script.called.get("backward") and script.called.get("step") and script.loops)


def is_distributed(script: ScriptTree) -> bool:
    """Whether a script joins a group of ranks, by itself or with a library."""
    joins = script.calls("init_process_group") or wrapped_models(script) or frameworks(script)
    return bool(joins or script.calls("init", *HOROVOD))
