"""What a script says about ranks: which expressions are one, and what only some ranks reach."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.manifests.scripts.reading import DEPTH, Script, constant

LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric")
HOROVOD = ("horovod", "fabric_train")
RANK = re.compile(r"^(?!.*(lora|low|matrix)_).*(?<![a-z])rank(_id)?$|process_index$|procid$", re.I)
MAIN = re.compile(
    r"(?<![a-z])(is_|on_)?(main|master|chief|primary|leader)_?(process|rank|node|worker|proc)?$"
    r"|global_zero$|rank_?(zero|0)$|first_(process|rank)$|main_process|rank_zero",
    re.I,
)
NOT_MAIN = re.compile(r"(^|\.)(main|master|primary|leader)$")
"""A function ``main``, and an address ``master``, say nothing of ranks."""
GLOBAL = re.compile(r"(^|\.)(get_rank|global_rank|process_index)$")
WORDS = re.compile(
    r"rank|process_index|procid|global_zero|main_process|is_main|is_master|master_p", re.I
)
"""Anything that has to do with ranks, for rules that then say nothing."""
FIRST_ALONE = re.compile(r"rank_zero|main_process|zero_first|master_only|rank_?0|main_only", re.I)
"""Decorators and context managers that let one rank go first or alone."""


def words_of_ranks(script: Script, node: ast.AST) -> bool:
    """Whether an expression, or what its names hold, has to do with ranks at all."""
    for one in script.reach(node):
        word = one.id if isinstance(one, ast.Name) else getattr(one, "attr", "")
        if WORDS.search(word) or WORDS.search(script.variable_read(one)):
            return True
        if isinstance(one, ast.Call) and script.root(one) in HOROVOD:
            return True
    return False


def is_global_rank(script: Script, node: ast.AST | None, depth: int = DEPTH) -> bool:
    """Whether an expression is the rank among all workers, by what is assigned and called."""
    if node is None or depth == 0:
        return False
    if script.variable_read(node) in ("RANK", "SLURM_PROCID"):
        return True
    if isinstance(node, ast.Call):
        name = script.name(node.func)
        if name in ("int", "str") and node.args:
            return is_global_rank(script, node.args[0], depth)
        if GLOBAL.search(name) or (script.root(node) in HOROVOD and name.endswith(".rank")):
            return True
    if isinstance(node, ast.Attribute) and GLOBAL.search(script.name(node)):
        return True
    return any(is_global_rank(script, value, depth - 1) for value in script.values(node))


def _is_rank(script: Script, node: ast.AST) -> bool:
    """Whether an operand of a comparison is a rank of any kind."""
    for one in script.reach(node, 2):
        word = one.id if isinstance(one, ast.Name) else getattr(one, "attr", "")
        if RANK.search(word) or RANK.search(script.variable_read(one)):
            return True
    return False


def is_rank_check(script: Script, test: ast.AST, depth: int = DEPTH) -> bool:
    """Whether a condition holds on some ranks and not on others."""
    if depth == 0:
        return False
    if isinstance(test, ast.BoolOp):
        return any(is_rank_check(script, one, depth) for one in test.values)
    if isinstance(test, ast.UnaryOp):
        inner = test.operand
        return is_rank_check(script, inner, depth) or _is_plain_rank(script, inner)
    if isinstance(test, ast.Compare):
        return _compares_ranks(script, test)
    name = script.name(test.func if isinstance(test, ast.Call) else test)
    if MAIN.search(name) and not NOT_MAIN.search(name):
        return True
    return any(is_rank_check(script, value, depth - 1) for value in script.values(test))


def _is_plain_rank(script: Script, node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute | ast.Call) and _is_rank(script, node)


def _compares_ranks(script: Script, test: ast.Compare) -> bool:
    if isinstance(test.ops[0], ast.Is | ast.IsNot):
        return False
    operands = (test.left, *test.comparators)
    # rank != -1 and rank >= 0 ask whether there are ranks at all.
    asks_if_any = any(ast.unparse(one) == "-1" for one in operands)
    if isinstance(test.ops[0], ast.GtE) and constant(test.comparators[0]) == 0:
        asks_if_any = True
    texts = any(isinstance(constant(one), str) for one in operands)
    return not (asks_if_any or texts) and any(_is_rank(script, one) for one in operands)


def rank_conditions(script: Script, node: ast.AST, depth: int = 3) -> list[ast.expr]:
    """The conditions that let only some ranks reach a node, here or at all calls of its function."""
    own = [one for one in script.conditions(node) if is_rank_check(script, one)]
    callers = script.callers(node)
    if own or not callers or depth == 0:
        return own
    found = [rank_conditions(script, call, depth - 1) for call in callers]
    return found[0] if all(found) else []


def is_guarded(script: Script, node: ast.AST) -> bool:
    """Whether one rank reaches a node alone or first, as far as words tell. For precision."""
    todo: list[tuple[ast.AST, int]] = [(node, 3)]
    while todo:
        at, left = todo.pop()
        if _is_guarded_here(script, at):
            continue
        callers = script.callers(at)
        if not callers or left == 0:
            return False
        todo += [(call, left - 1) for call in callers]
    return True


def _is_guarded_here(script: Script, node: ast.AST) -> bool:
    return any(FIRST_ALONE.search(name) for name in script.contexts(node)) or any(
        is_rank_check(script, one) or words_of_ranks(script, one) for one in script.conditions(node)
    )


def barriers(script: Script) -> Iterator[ast.Call]:
    """All calls at which ranks wait for each other, and do no more."""
    for name in ("barrier", "monitored_barrier", "wait_for_everyone", "synchronize"):
        for call in script.calls(name):
            if not script.name(call.func).startswith("torch.cuda"):
                yield call


def frameworks(script: Script) -> set[str]:
    """Which of the libraries that take ranks, devices or data into their hands are used."""
    found = set()
    bases = {base for one in script.classes for base in script.bases(one)}
    lightning = [base for base in bases if base.partition(".")[0] in LIGHTNING]
    if script.calls("Trainer", *LIGHTNING) or lightning:
        found.add("lightning")
    if script.calls("Fabric", *LIGHTNING):
        found.add("fabric")
    if script.calls("Accelerator", "accelerate"):
        found.add("accelerate")
    if script.calls("initialize", "deepspeed") or script.calls("init_distributed", "deepspeed"):
        found.add("deepspeed")
    names = [name for name in (*script.called, *bases) if name.endswith("Trainer")]
    roots = {name.partition(".")[0] for name in script.imports.values()}
    if names and roots & {"transformers", "trl", "sentence_transformers", "setfit"}:
        found.add("transformers")
    others = (
        "composer",
        "ray",
        "ignite",
        "colossalai",
        "fastai",
        "mmengine",
        "torchtnt",
        "megatron",
    )
    return found | (roots & set(others))


def is_distributed(script: Script) -> bool:
    """Whether a script joins a group of ranks by itself."""
    joins = script.calls("init_process_group") or wrapped_models(script)
    return bool(joins or script.calls("init", *HOROVOD) or script.calls("initialize", "deepspeed"))


def wrapped_models(script: Script) -> list[ast.Call]:
    """The calls that make a DDP or FSDP model."""
    names = ("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard")
    return [call for name in names for call in script.calls(name, "torch")]


def trains(script: Script) -> bool:
    """Whether the script has a loop of its own that trains."""
    return bool(script.called.get("backward")) and bool(script.loops)
