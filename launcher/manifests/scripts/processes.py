"""Rules of training scripts about processes and groups: who starts them, who waits for whom."""

from __future__ import annotations

import ast
import re

from launcher.manifests.checks.rules import Breaches
from launcher.manifests.scripts.devices import variables_set
from launcher.manifests.scripts.ranks import LIGHTNING, frameworks, rank_conditions, wrapped_models
from launcher.manifests.scripts.reading import Script, argument, constant, is_open, shown
from launcher.manifests.scripts.rules import ScriptRule

GIVEN = {"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
"""What each worker finds in its environment."""
COLLECTIVES = {
    *("barrier", "monitored_barrier", "all_reduce", "all_gather", "all_gather_object", "broadcast"),
    *("all_gather_into_tensor", "broadcast_object_list", "reduce", "gather", "gather_object"),
    *("scatter", "scatter_object_list", "reduce_scatter", "reduce_scatter_tensor", "all_to_all"),
    "all_to_all_single",
}
OF_ALL = {
    "torch": COLLECTIVES,
    "horovod": {"allreduce", "allgather", "broadcast", "broadcast_parameters", "broadcast_object"},
    "fabric": {"barrier", "all_gather", "all_reduce", "broadcast", "save"},
    "lightning": {"save_checkpoint"},
    "accelerate": {"wait_for_everyone", "gather", "gather_for_metrics", "reduce"},
    "deepspeed": {"save_checkpoint"},
}
"""What all ranks have to call, by the library whose objects have it."""
MAKERS = {
    "Fabric": "fabric", "Trainer": "lightning", "Accelerator": "accelerate",
    "initialize": "deepspeed",
}  # fmt: skip
HERE = re.compile(r"^tcp://(localhost|127\.0\.0\.1|\[::1\])\b")
OPTIONS = re.compile(r"\b(args|opts?|cfg|conf|config|hparams|params|flags|FLAGS|environ|getenv)\b")
ONE_DEVICE = (None, 1, "1", "auto")


def check_address_set(script: Script) -> Breaches:
    """Variables that the launcher gives, or the address itself, written in the script."""
    for at, name, value in variables_set(script):
        conditions = " ".join(ast.unparse(one) for one in script.conditions(at))
        is_own = any(script.variable_read(one) == name for one in ast.walk(value))
        if name in GIVEN and not is_own and not OPTIONS.search(conditions):
            what = f"{name} is set to {shown(value)}"
            fix = f'leave it out, or os.environ.setdefault("{name}", ...)'
            yield from script.hit(ScriptRule.ADDRESS_SET, at, what, fix)
    for call in script.calls("init_process_group"):
        method = argument(call, "init_method", 1)
        address = constant(method) if method is not None else None
        if isinstance(address, str) and HERE.match(address):
            what = f"init_method={address!r}, which each node looks for on itself"
            yield from script.hit(ScriptRule.ADDRESS_SET, call, what, "leave out init_method")


def check_own_world(script: Script) -> Breaches:
    """``mp.spawn``, or processes that join a group, in a script that is started once for each GPU."""
    joins = script.calls("init_process_group")
    calls = script.calls("spawn", "torch")
    calls += [
        call
        for call in (
            *script.calls("Process", "torch", "multiprocessing"),
            *script.calls("Process", "ctx"),
        )
        if joins and _joins(script, argument(call, "target", 1))
    ]
    for call in calls:
        if OPTIONS.search(" ".join(ast.unparse(one) for one in script.conditions(call))):
            continue  # Without that option, or under a launcher, it does not happen.
        started = argument(call, "fn", 0) or argument(call, "target", 1)
        name = shown(started) if started is not None else "main"
        what = f"{shown(call)} starts the processes of one node by itself"
        fix = f"call {name} once: RANK, LOCAL_RANK and WORLD_SIZE are in the environment"
        yield from script.hit(ScriptRule.OWN_WORLD, call, what, fix)


def _joins(script: Script, target: ast.expr | None) -> bool:
    """Whether a function of this script, or one that it calls, makes a process group."""
    todo = [script.name(target)] if target is not None else []
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        seen.add(name)
        for node in (node for one in script.functions.get(name, ()) for node in ast.walk(one)):
            if isinstance(node, ast.Call):
                called = script.name(node.func)
                if called.endswith("init_process_group"):
                    return True
                todo += [called] if called not in seen else []
    return False


def check_world_size_of_node(script: Script) -> Breaches:
    """The number of this node's GPUs, taken for the number of processes."""
    for node in script.parents:
        values: list[tuple[str, ast.expr]] = []
        if isinstance(node, ast.Assign):
            values = [(shown(target), node.value) for target in node.targets]
        elif isinstance(node, ast.Call) and script.name(node.func).endswith("init_process_group"):
            values = [(one.arg or "", one.value) for one in node.keywords]
        for name, value in values:
            is_count = isinstance(value, ast.Call) and script.name(value.func).endswith(
                "cuda.device_count"
            )
            if is_count and re.search(r"(?<!local_)(?<!node_)world_?size", name, re.I):
                what = f"{name} = {shown(value)}"
                fix = 'dist.get_world_size(), or int(os.environ["WORLD_SIZE"])'
                yield from script.hit(ScriptRule.WORLD_SIZE_OF_NODE, value, what, fix)


# -- who waits for whom ---------------------------------------------------------------------------


def collectives(script: Script) -> list[tuple[ast.Call, str]]:
    """The calls that all ranks have to make, with their names, but for those of a smaller group."""
    found = []
    for last in set().union(*OF_ALL.values()):
        for call in script.calls(last):
            of = library_of(script, call)
            if of and last in OF_ALL[of] and not _is_of_group(script, call):
                found.append((call, last))
    return sorted(found, key=lambda one: one[0].lineno)


def library_of(script: Script, call: ast.Call) -> str:
    """Whose function or method is called; empty where that is not known."""
    name = script.name(call.func)
    root = name.partition(".")[0]
    if name.startswith("torch.distributed."):
        return "torch"
    if root == "horovod" or name.startswith("fabric_train.horovod"):
        return "horovod"
    if not isinstance(call.func, ast.Attribute):
        return ""
    for one in script.reach(call.func.value):
        made = script.name(one.func) if isinstance(one, ast.Call) else ""
        head, last = made.partition(".")[0], made.rpartition(".")[2]
        if last in MAKERS and head in (*LIGHTNING, "accelerate", "deepspeed"):
            return MAKERS[last]
    # By convention, where it is a parameter whose calls are not in this script.
    return root if root in ("fabric",) and "fabric" in frameworks(script) else ""


def _is_of_group(script: Script, call: ast.Call) -> bool:
    if argument(call, "group") is not None:
        return True
    words = [node for one in call.args for node in script.reach(one, 2)]
    return any("group" in script.name(one).rpartition(".")[2] for one in words)


def check_some_ranks_only(script: Script) -> Breaches:
    """A barrier or collective that only some ranks reach."""
    calls = collectives(script)
    guarded = [(call, name, rank_conditions(script, call)) for call, name in calls]
    for call, name, tests in guarded:
        if not tests:
            continue
        # The other ranks' call stands under a condition of its own: else, or rank != 0.
        function = script.function_of(call)
        others = [
            one
            for one, other, theirs in guarded
            if one is not call and other == name and theirs and _differs(script, one, call)
            and script.function_of(one) is function
        ]  # fmt: skip
        if not others:
            what = f"{shown(call)} under {shown(tests[0])}"
            fix = "on all ranks: out of the condition, with only what one rank does inside"
            yield from script.hit(ScriptRule.SOME_RANKS_ONLY, call, what, fix)


def _differs(script: Script, one: ast.Call, other: ast.Call) -> bool:
    """Whether two calls stand in different branches, or under different conditions."""
    first, second = (
        [(t, _branch(script, c, t)) for t in script.conditions(c)] for c in (one, other)
    )
    return [(ast.unparse(t), b) for t, b in first] != [(ast.unparse(t), b) for t, b in second]


def _branch(script: Script, node: ast.AST, test: ast.expr) -> bool:
    """Whether a node stands in the ``else`` of a condition."""
    above = script.parents[test]
    while (parent := script.parents.get(node)) is not None and parent is not above:
        node = parent
    return isinstance(above, ast.If) and node in above.orelse


def check_group_destroyed_early(script: Script) -> Breaches:
    """The group's end in a function whose DDP model is still alive, or still used."""
    made = {
        (script.function_of(call), shown(target))
        for call in wrapped_models(script)
        if isinstance(above := script.parents[call], ast.Assign)
        for target in above.targets
    }
    is_gloo = any(
        constant(argument(call, "backend", 0)) == "gloo"
        for call in script.calls("init_process_group")
    )
    for call in script.calls("destroy_process_group"):
        function = script.function_of(call)
        names = {name for of, name in made if of is function}
        deleted = {
            shown(one)
            for node in script.parents
            if isinstance(node, ast.Delete)
            for one in node.targets
        }
        used = [
            node
            for node in script.parents
            if isinstance(node, ast.Name | ast.Attribute)
            and shown(node) in names
            and script.function_of(node) is function
            and node.lineno > call.lineno
            and isinstance(node.ctx, ast.Load)
        ]
        if used or (is_gloo and names - deleted):
            name = shown(used[0]) if used else sorted(names - deleted)[0]
            when = f"is used on line {used[0].lineno}" if used else "is alive"
            fix = f"del {name} before it, or call it where {name} is gone: after main()"
            what = f"{shown(call)} while the DDP model {name} {when}"
            yield from script.hit(ScriptRule.GROUP_DESTROYED_EARLY, call, what, fix)


def check_fabric_cpu(script: Script) -> Breaches:
    """``Fabric(accelerator="cpu")`` that does not say how many processes there are."""
    for call in script.calls("Fabric", *LIGHTNING):
        devices = argument(call, "devices", 2)
        is_one = devices is None or (
            isinstance(devices, ast.Constant) and devices.value in ONE_DEVICE
        )
        if constant(argument(call, "accelerator", 0)) == "cpu" and is_one and not is_open(call):
            fix = 'devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=..., strategy="ddp"'
            what = f"{shown(call)} without devices"
            yield from script.hit(ScriptRule.FABRIC_CPU, call, what, fix)
