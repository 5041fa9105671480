"""Rules for how the nodes find each other: address, port, id and rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from launcher.manifests.batch.rules import BatchRule, hit_line
from launcher.manifests.batch.script import SRUN, TORCHRUN, BatchScript, Launch
from launcher.manifests.batch.shape import Shape, step_shape
from launcher.manifests.batch.shell import END, HERE, MARKS
from launcher.manifests.batch.starting import is_per_node, nnodes_of
from launcher.manifests.batch.values import (
    commands_of,
    is_fixed,
    readable,
    split_port,
    variables_of,
)
from launcher.manifests.checks.rules import Breach, Breaches

FIRST_NODE = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
JOB_PORT = "$((20000 + SLURM_JOB_ID % 20000))"
JOB_ID = "$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"
NODELISTS = {"SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST"}
OWN_NAMES = {"HOSTNAME", "HOST", "SLURMD_NODENAME"}
TASK_VARIABLES = {"SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"}
LOOPBACK = re.compile(r"^(localhost|127\.\d+\.\d+\.\d+|::1|\[::1\])(?=:|$)")
EXPANDERS = re.compile(r"scontrol|nodeset|hostlist|expand|python|perl|sed|awk")
OWN_ADDRESSES = re.compile(r"\bhostname\s+(-i|-I|--ip-address|--all-ip-addresses)\b")
DRAWN = re.compile(r"\bshuf\b|\bRANDOM\b|\buuidgen\b|\bdate\b|\bpython")
ONE_TASK = re.compile(
    r"\s(-w|--nodelist|-N ?1\b|--nodes[= ]1\b|-n ?1\b|--ntasks[= ]1\b|-l|--label)"
)


@dataclass(frozen=True, kw_only=True)
class Written:
    """Something that the nodes must agree on, by its name, and the line where it is made."""

    name: str
    value: str
    line: int


def check_meeting(script: BatchScript, launch: Launch) -> Breaches:
    """One launch on several nodes; of one node only the port matters."""
    shape = step_shape(script, launch)
    address, port = _address(script, launch), _port(script, launch)
    if not shape.is_single:
        if address is not None:
            yield from _check_address(script, shape, address)
        for one in (address, port, _option(script, launch, "rdzv-id")):
            if one is not None and _is_drawn_on_node(one.value):
                what = f"{one.name} is drawn anew on each node"
                fix = f"a value of the job, such as {JOB_PORT} or $SLURM_JOB_ID"
                yield hit_line(BatchRule.RANDOM_OF_EACH_NODE, script, one.line, what, fix)
        if launch.program == TORCHRUN:
            yield from _check_torchrun(script, launch, shape)
        yield from _check_task_variables(script, launch)
    yield from _check_port(script, launch, port)


def _option(script: BatchScript, launch: Launch, *names: str) -> Written | None:
    """An option of torchrun, or the PET_ variable that stands for it."""
    for name in names:
        if given := launch.options.get(name):
            return _origin(script, f"--{name}", given.value, given.line)
        variable = "PET_" + name.upper().replace("-", "_")
        if value := launch.scope.values.get(variable):
            return _origin(script, variable, value, launch.line)
    return None


def _origin(script: BatchScript, name: str, value: str, line: int) -> Written:
    """A value with the variable that its part which only a run tells is assigned to, if any."""
    for one in reversed(script.assigned):
        if one.value and one.value in value and (MARKS.search(one.value) or one.value == value):
            return Written(name=one.name, value=value, line=one.line)
    return Written(name=name, value=value, line=line)


def _variable(script: BatchScript, launch: Launch, name: str) -> Written | None:
    value = launch.scope.values.get(name)
    line = max((one.line for one in script.assigned if one.name == name), default=0)
    return Written(name=name, value=value, line=line) if value and line else None


def _address(script: BatchScript, launch: Launch) -> Written | None:
    if launch.program != TORCHRUN:
        return _variable(script, launch, "MASTER_ADDR")
    found = _option(script, launch, "rdzv-endpoint", "master-addr")
    return None if found is None else replace(found, value=split_port(found.value)[0])


def _port(script: BatchScript, launch: Launch) -> Written | None:
    """Where the port is written; its value is empty for a default of torchrun."""
    if launch.program != TORCHRUN:
        return _variable(script, launch, "MASTER_PORT")
    if endpoint := _option(script, launch, "rdzv-endpoint"):
        host, port = split_port(endpoint.value)
        if port:
            return _origin(script, endpoint.name, port, endpoint.line)
        is_host = not MARKS.search(host) or commands_of(host)
        return replace(endpoint, value="") if is_host else None
    return _option(script, launch, "master-port")


def _check_address(script: BatchScript, shape: Shape, address: Written) -> Breaches:
    value, name = address.value, address.name
    fix = f"{name}={FIRST_NODE}" + (f":{JOB_PORT}" if name == "--rdzv-endpoint" else "")

    def found(rule: BatchRule, what: str) -> Breach:
        return hit_line(rule, script, address.line, what, fix)

    here = " ".join(commands_of(value))
    if variables_of(value) & NODELISTS and not EXPANDERS.search(value):
        cut = re.search(r"\bhead\b|\bcut\s+-d\s*['\"]?,|%%", value)
        whole = not here and shape.is_multiple
        if cut or whole:
            yield found(BatchRule.NODELIST_UNEXPANDED, f"{name} from {_short(value)}")
    if variables_of(value, on_node=True) & OWN_NAMES or any(
        re.match(r"\s*(/bin/)?hostname\b", one) for one in commands_of(value, on_node=True)
    ):
        yield found(BatchRule.ADDRESS_OF_EACH_NODE, f"{name} is asked of each node by itself")
    elif OWN_ADDRESSES.search(here):
        yield found(BatchRule.ADDRESS_BY_HOSTNAME, f"{name} from {_short(value)}")
    elif (
        re.search(r"\bsrun\b[^|;'\"]*\bhostname\b", here)
        and not ONE_TASK.search(here.partition("hostname")[0])
        and "sort" not in here
    ):
        yield found(BatchRule.ADDRESS_UNORDERED, f"{name} from {_short(value)}")
    if LOOPBACK.search(value) and shape.is_multiple:
        yield found(BatchRule.ADDRESS_LOOPBACK, f"{name}={value} in a job of {shape.nodes} nodes")
    if "SLURM_SUBMIT_HOST" in variables_of(value):
        yield found(BatchRule.ADDRESS_OF_LOGIN_NODE, f"{name} from {_short(value)}")


def _short(value: str) -> str:
    text = " ".join(readable(value).split())
    return text if len(text) <= 70 else f"{text[:67]}..."


def _is_drawn_on_node(value: str) -> bool:
    drawn = any(DRAWN.search(one) for one in commands_of(value, on_node=True))
    return drawn or "RANDOM" in variables_of(value, on_node=True)


def _check_torchrun(script: BatchScript, launch: Launch, shape: Shape) -> Breaches:
    given = {*launch.options} | {
        name.removeprefix("PET_").lower().replace("_", "-")
        for name in launch.scope.values
        if name.startswith("PET_")
    }
    if launch.is_open or "standalone" in given:
        return
    static = _is_static(script, launch)
    counts_nodes = shape.is_multiple and nnodes_of(launch) != "1" and launch.starter == SRUN
    if counts_nodes and not given & {"rdzv-endpoint", "master-addr"}:
        what = "torchrun on several nodes without --rdzv-endpoint or --master-addr"
        fix = f"--rdzv-backend=c10d --rdzv-endpoint={FIRST_NODE}:{JOB_PORT}"
        yield hit_line(BatchRule.NO_ENDPOINT, script, launch.line, what, fix)
    elif counts_nodes and static and "node-rank" not in given and not is_per_node(launch):
        what = "torchrun on several nodes without --node-rank, and not --rdzv-backend=c10d"
        yield hit_line(BatchRule.NO_NODE_RANK, script, launch.line, what, "--rdzv-backend=c10d")
    if not static and "no-requeue" not in script.options:
        yield from _check_id(script, launch)


def _check_id(script: BatchScript, launch: Launch) -> Breaches:
    given, port = _option(script, launch, "rdzv-id"), _port(script, launch)
    if port is not None and port.value and not is_fixed(port.value):
        return
    if given is None or is_fixed(given.value):
        what = "no --rdzv-id" if given is None else f"{given.name}={given.value} in every start"
        line = launch.line if given is None else given.line
        yield hit_line(BatchRule.RDZV_ID_FIXED, script, line, what, f"--rdzv-id={JOB_ID}")


def _check_task_variables(script: BatchScript, launch: Launch) -> Breaches:
    if launch.starter != SRUN:
        return
    for name, value, line in _task_values(script, launch):
        early = variables_of(value, on_node=False) & TASK_VARIABLES
        for variable in sorted(early):
            what = f"{name}=${variable} outside of srun"
            fix = f"srun bash -c 'torchrun --node-rank=${variable} ...', in single quotes"
            if launch.program != TORCHRUN:
                fix = f"srun bash -c '{name}=${variable} python ...', in single quotes"
            yield hit_line(BatchRule.TASK_VARIABLE_EARLY, script, line, what, fix)


def _task_values(script: BatchScript, launch: Launch) -> Iterator[tuple[str, str, int]]:
    """What a program takes for its rank: torchrun sets the ranks of its workers by itself."""
    if launch.program == TORCHRUN:
        given = launch.options.get("node-rank")
        if given is not None and _is_static(script, launch):
            yield "--node-rank", given.value, given.line
        return
    for word in launch.arguments:
        if re.fullmatch(f"(-[^=]*=)?{HERE}\\w+{END}", word.raw):
            yield "an argument", word.raw, word.line
    for one in script.assigned:
        if one.is_exported and not one.on_node and re.search(r"RANK", one.name):
            yield one.name, one.value, one.line


def _is_static(script: BatchScript, launch: Launch) -> bool:
    """Whether torchrun's ranks of nodes are those that it is given."""
    backend = _option(script, launch, "rdzv-backend")
    return backend is None or backend.value == "static"


def _check_port(script: BatchScript, launch: Launch, port: Written | None) -> Breaches:
    if "exclusive" in script.options or "standalone" in launch.options:
        return
    shape = step_shape(script, launch)
    if port is not None and port.value and is_fixed(port.value) and port.value != "0":
        what = f"port {port.value} in every job, on nodes that others may share"
        fix = f"#SBATCH --exclusive, or {JOB_PORT}"
        yield hit_line(BatchRule.PORT_FIXED, script, port.line, what, fix)
    elif port is not None and not port.value:
        what = f"{port.name} without a port, which is then 29400 in every job"
        fix = f"#SBATCH --exclusive, or :{JOB_PORT} behind the host"
        yield hit_line(BatchRule.PORT_FIXED, script, port.line, what, fix)
    elif port is None and shape.is_single and _is_default(script, launch):
        what = "torchrun's own port 29500, on a node that others may share"
        yield hit_line(BatchRule.PORT_FIXED, script, launch.line, what, "torchrun --standalone")


def _is_default(script: BatchScript, launch: Launch) -> bool:
    """Whether torchrun takes its own address and port."""
    given = _option(script, launch, "rdzv-endpoint", "rdzv-backend")
    return launch.program == TORCHRUN and given is None and not launch.is_open
