"""Rules of training scripts about processes and groups: who starts them, who waits for whom."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.manifests.checks.rules import Breaches
from launcher.manifests.scripts.ranks import LIGHTNING, TrainingScript
from launcher.manifests.scripts.reading import argument, constant, is_open, shown
from launcher.manifests.scripts.rules import ScriptRule

GIVEN = {"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
"""What each worker finds in its environment."""
OF_ALL = {
    "torch": re.compile(r"(monitored_)?barrier|(all_)?(reduce|gather)\w*|broadcast\w*|scatter\w*"
                        r"|all_to_all\w*"),
    "horovod": re.compile(r"allreduce|allgather|broadcast\w*"),
    "Fabric": re.compile(r"barrier|all_gather|all_reduce|broadcast|save"),
    "Trainer": re.compile(r"save_checkpoint"),
    "Accelerator": re.compile(r"wait_for_everyone|gather\w*|reduce"),
    "initialize": re.compile(r"save_checkpoint"),
}  # fmt: skip
"""Calls that all ranks have to make: of a module, or of an object that the named call makes."""
HERE = re.compile(r"tcp://(localhost|127\.0\.0\.1|\[::1\])\b")
OPTIONS = re.compile(
    r"\b(args|opts?|cfg|conf|config|hparams|params|flags|environ|getenv|launcher|slurm)\b", re.I
)
"""Words by which a condition depends on an option or a launcher."""


def is_optional(script: TrainingScript, node: ast.AST) -> bool:
    """Whether a node, or a call of its function, stands under an option."""
    outer = (test for call in script.callers(node) for test in script.conditions(call))
    return any(OPTIONS.search(ast.unparse(test)) for test, _ in (*script.conditions(node), *outer))


def check_variables(script: TrainingScript) -> Breaches:
    """Variables that the launcher gives, or its address, set in the script."""
    for call in script.calls("init_process_group"):
        address = constant(argument(call, "init_method", 1))
        if HERE.match(str(address)) and not is_optional(script, call):
            what, fix = f"init_method={address!r}: each node looks there", "leave out init_method"
            yield from script.hit(ScriptRule.ADDRESS_SET, call, what, fix)
    for node, key, value in _set_variables(script):
        name = str(constant(key))
        what, fix = f"{name} is set to {shown(value)}", "leave it out: the launcher gives it"
        is_off = constant(value) in ("", "-1") or script.has_to_do_with_ranks(value)
        if name == "CUDA_VISIBLE_DEVICES" and not is_off:
            yield from script.hit(ScriptRule.VISIBLE_DEVICES, node, what, fix)
        is_own = any(script.word(part) == name for part in ast.walk(value))
        if name in GIVEN and not is_own and not is_optional(script, node):
            yield from script.hit(ScriptRule.ADDRESS_SET, node, what, fix)


def _set_variables(
    script: TrainingScript,
) -> Iterator[tuple[ast.stmt | ast.expr, ast.AST, ast.expr]]:
    """Where ``os.environ`` gets a value: the place, the name and the value."""
    for assign in (node for node in script.nodes if isinstance(node, ast.Assign)):
        target = assign.targets[0]
        if isinstance(target, ast.Subscript) and script.name(target.value) == "os.environ":
            yield assign, target.slice, assign.value
    for call in script.calls("update", "os"):
        for mapping in (node for node in call.args if isinstance(node, ast.Dict)):
            pairs = zip(mapping.keys, mapping.values, strict=True)
            yield from ((call, key, value) for key, value in pairs if key)


def check_own_world(script: TrainingScript) -> Breaches:
    """``mp.spawn``, or processes that join a group, in a script that is started for each GPU."""
    calls = [(call, argument(call, "fn", 0)) for call in script.calls("spawn", "torch")]
    for call in script.calls("Process"):
        target = argument(call, "target", 1)
        inside = script.functions.get(script.name(target), ())
        if any(script.leads_to(function, "init_process_group") for function in inside):
            calls.append((call, target))
    for call, started in calls:
        if started is not None and not is_optional(script, call):
            what = f"{shown(call)} starts the processes of one node"
            fix = f"call {shown(started)} once: RANK and LOCAL_RANK are in the environment"
            yield from script.hit(ScriptRule.OWN_WORLD, call, what, fix)


def check_world_size_of_node(script: TrainingScript) -> Breaches:
    """The number of this node's GPUs, taken for the number of processes."""
    for call in script.calls("device_count"):
        above = script.parents[call]
        names = [shown(target) for target in getattr(above, "targets", [])]
        names += [above.arg or ""] if isinstance(above, ast.keyword) else []
        if any(re.search(r"(?<!local_)(?<!node_)world_?size$", name, re.I) for name in names):
            what = f"{names[0]} = {shown(call)}"
            fix = 'dist.get_world_size(), or int(os.environ["WORLD_SIZE"])'
            yield from script.hit(ScriptRule.WORLD_SIZE_OF_NODE, call, what, fix)


# -- who waits for whom ---------------------------------------------------------------------------


def _waits_for_all(script: TrainingScript, call: ast.Call) -> bool:
    """Whether all ranks have to make a call; not for one of a smaller group."""
    name = script.name(call)
    makers = {"torch"} if name.startswith("torch.distributed.") else set()
    makers |= {"horovod"} if "horovod." in name else set()
    if isinstance(call.func, ast.Attribute) and not makers:
        made = [node for node in script.reach(call.func.value) if isinstance(node, ast.Call)]
        roots = (*LIGHTNING, "accelerate", "deepspeed")
        makers = {script.last(node) for node in made if script.root(node) in roots}
    words = {script.word(node) for part in call.args for node in script.reach(part, 1)}
    is_part = argument(call, "group") is not None or any("group" in word for word in words)
    return not is_part and any(
        OF_ALL[maker].fullmatch(script.last(call)) for maker in makers & OF_ALL.keys()
    )


def check_some_ranks_only(script: TrainingScript) -> Breaches:
    """A barrier or collective that only some ranks reach."""
    patterns = OF_ALL.values()
    names = [name for name in script.called if any(pattern.fullmatch(name) for pattern in patterns)]
    for name in names:
        calls = [call for call in script.calls(name) if _waits_for_all(script, call)]
        tests = {call: script.rank_conditions(call) for call in calls}
        for call in filter(tests.get, calls):
            # The other ranks' call stands under a condition of its own: else, or rank != 0.
            function = script.function_of(call)
            apart = [other for other in calls if tests[other] not in ([], tests[call])]
            if not any(script.function_of(other) is function for other in apart):
                test, holds = tests[call][0]
                what = f"{shown(call)} where {'' if holds else 'not '}{test}"
                fix = "call it on all ranks, outside of the condition"
                yield from script.hit(ScriptRule.SOME_RANKS_ONLY, call, what, fix)


def check_group_destroyed_early(script: TrainingScript) -> Breaches:
    """The group's end in a function whose DDP model is still alive, or still used."""
    joins = script.calls("init_process_group")
    is_gloo = any(constant(argument(call, "backend", 0)) == "gloo" for call in joins)
    deletions = [node for node in script.nodes if isinstance(node, ast.Delete)]
    deleted = {shown(target) for node in deletions for target in node.targets}
    for call in script.calls("destroy_process_group"):
        same = [model for model in script.wrapped_models if script.is_beside(model, call)]
        made = [shown(t) for model in same for t in getattr(script.parents[model], "targets", [])]
        names = [node for node in script.nodes if isinstance(node, ast.Name) and node.id in made]
        later = [
            name for name in names if name.lineno > call.lineno and isinstance(name.ctx, ast.Load)
        ]
        used = [name.id for name in later if script.is_beside(name, call)]
        alive = [name for name in made if is_gloo and name not in deleted]
        for name in [*used, *alive][:1]:
            what = f"{shown(call)} while the DDP model {name} is {'used' if used else 'alive'}"
            fix = f"del {name} before it, or call it after the function that has {name}"
            yield from script.hit(ScriptRule.GROUP_DESTROYED_EARLY, call, what, fix)


def check_fabric_cpu(script: TrainingScript) -> Breaches:
    """``Fabric(accelerator="cpu")`` that does not say how many processes there are."""
    for call in script.calls("Fabric", *LIGHTNING):
        devices = argument(call, "devices", 2)
        is_one = devices is None or constant(devices) in (1, "1", "auto")
        if constant(argument(call, "accelerator", 0)) == "cpu" and is_one and not is_open(call):
            fix = 'devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=..., strategy="ddp"'
            yield from script.hit(ScriptRule.FABRIC_CPU, call, shown(call), fix)
