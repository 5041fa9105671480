"""What a script says about ranks, and which library manages them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property

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
"""Libraries that count as used once they are imported."""


class TrainingScript(ScriptTree):
    """A script's tree, and what it says about ranks."""

    def has_to_do_with_ranks(self, node: ast.AST) -> bool:
        """Whether an expression, or a value of its names, mentions ranks; to avoid false alarms."""
        return any(
            WORDS.search(self.word(part))
            or constant(part) in ("RANK", "LOCAL_RANK")
            or (isinstance(part, ast.Call) and self.root(part) in HOROVOD)
            for part in self.reach(node)
        )

    def is_global_rank(self, node: ast.AST, depth: int = DEPTH) -> bool:
        """Whether an expression is the rank among all workers, by what is assigned and called."""
        if GLOBAL.match(self.word(node)) and not isinstance(node, ast.Name):
            return True
        if isinstance(node, ast.Call):
            if self.name(node) in ("int", "str") and node.args:
                return self.is_global_rank(node.args[0], depth)
            last = self.last(node)
            if GLOBAL.match(last) or (self.root(node) in HOROVOD and last == "rank"):
                return True
        return depth > 0 and any(self.is_global_rank(o, depth - 1) for o in self.values(node))

    def is_rank_check(self, test: ast.AST, depth: int = DEPTH) -> bool:
        """Whether a condition holds on some ranks and not on others."""
        if isinstance(test, ast.BoolOp):
            return any(self.is_rank_check(value, depth) for value in test.values)
        if isinstance(test, ast.UnaryOp):
            is_rank = bool(RANK.search(self.last(test.operand)))
            return is_rank or self.is_rank_check(test.operand, depth)
        if isinstance(test, ast.Compare):
            operands = (test.left, *test.comparators)
            # rank != -1, rank >= 0 and "RANK" in os.environ ask whether there are ranks at all.
            is_any = isinstance(test.ops[0], ast.GtE) and constant(test.comparators[0]) == 0
            is_any |= any(ast.unparse(operand) in ("-1", "None") for operand in operands)
            is_any |= any(isinstance(constant(operand), str) for operand in operands)
            words = (self.word(node) for part in operands for node in self.reach(part, 2))
            return not is_any and any(map(RANK.search, words))
        if MAIN.search(self.last(test)):
            return True
        return depth > 0 and any(self.is_rank_check(o, depth - 1) for o in self.values(test))

    def rank_conditions(self, node: ast.AST, depth: int = 3) -> list[tuple[str, bool]]:
        """The tests that let only some ranks reach a node, here or at all calls of its function."""
        tests = [(test, way) for test, way in self.conditions(node) if self.is_rank_check(test)]
        here = [(ast.unparse(test), way) for test, way in tests]
        callers = self.callers(node)
        if here or not callers or depth == 0:
            return here
        conditions = [self.rank_conditions(call, depth - 1) for call in callers]
        # Under different conditions, such as rank != 0 and then rank == 0, all ranks may reach it.
        return conditions[0] if all(condition == conditions[0] for condition in conditions) else []

    def is_guarded(self, node: ast.AST, depth: int = 3) -> bool:
        """Whether, by names, one rank reaches a node alone or first; to avoid false alarms."""
        tests = (test for test, _ in self.conditions(node))
        if any(self.is_rank_check(test) or self.has_to_do_with_ranks(test) for test in tests):
            return True
        if any(FIRST.search(name) for name in self.contexts(node)):
            return True
        callers = self.callers(node) if depth else []
        return bool(callers) and all(self.is_guarded(call, depth - 1) for call in callers)

    def contexts(self, node: ast.AST) -> Iterator[str]:
        """The names of the context managers and decorators around a node."""
        while (above := self.parents.get(node)) is not None:
            if isinstance(above, ast.With):
                yield from (self.name(item.context_expr) for item in above.items)
            elif isinstance(above, ast.FunctionDef):
                yield from (self.name(decorator) for decorator in above.decorator_list)
            node = above

    @cached_property
    def barriers(self) -> list[ast.Call]:
        """All calls at which ranks wait for each other, and do no more."""
        return [*self.calls("barrier"), *self.calls("monitored_barrier"),
                *self.calls("wait_for_everyone")]  # fmt: skip

    @cached_property
    def frameworks(self) -> set[str]:
        """The libraries in use that manage ranks, devices or data."""
        bases = {base for cls in self.classes for base in self.bases(cls)}
        roots = {name.partition(".")[0] for name in self.imports.values()}
        of_lightning = any(base.partition(".")[0] in LIGHTNING for base in bases)
        trainers = [name for name in (*self.called, *bases) if name.endswith("Trainer")]
        used = {
            "lightning": self.calls("Trainer", *LIGHTNING) or of_lightning,
            "fabric": self.calls("Fabric", *LIGHTNING),
            "accelerate": self.calls("Accelerator", "accelerate"),
            "deepspeed": self.calls("initialize", "deepspeed"),
            "transformers": trainers and roots & {"transformers", "trl", "sentence_transformers"},
        }
        return {name for name, is_used in used.items() if is_used} | (roots & OTHERS)

    @cached_property
    def wrapped_models(self) -> list[ast.Call]:
        """The calls that make a DDP or FSDP model."""
        names = ("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard")
        return [call for name in names for call in self.calls(name, "torch")]

    @cached_property
    def trains(self) -> bool:
        """Whether the script has a loop of its own that trains."""
        return bool(self.called.get("backward") and self.called.get("step") and self.loops)

    @cached_property
    def is_distributed(self) -> bool:
        """Whether a script joins a group of ranks, by itself or with a library."""
        joins = self.calls("init_process_group") or self.wrapped_models or self.frameworks
        return bool(joins or self.calls("init", *HOROVOD))
