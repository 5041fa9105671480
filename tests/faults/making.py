"""Makes a fault for real: the script, the command that runs it, and what is done to the run."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from tests.faults import beds, surroundings, trim
from tests.faults.beds import Bed
from tests.faults.corpus import Fault, pack, part_of, unpack
from tests.waiting import wait_until

START = """\
import os, sys, time
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("PATIENCE_S", "8"))))
rank, world = dist.get_rank(), dist.get_world_size()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
PEER_LIMIT_S = 90.0
"""Of torchrun, which may wait for ever where the launcher ends what hangs."""


def record(fault: Fault, folder: Path) -> None:
    """Makes the fault in an empty folder and keeps what it left, in the place of an older one."""
    made = make(fault, folder / "project")
    recording = unpack(part_of(fault.name)) / fault.name
    target = recording if made.is_dir() else recording.with_name(f"{fault.name}.log")
    trim.record(made, target, folder / "project")
    pack(part_of(fault.name))


def compare(fault: Fault, folder: Path) -> None:
    """Makes the same under torchrun, and keeps what that tells at its end."""
    told = make_by_torchrun(fault, folder / "peer", PEER_LIMIT_S)
    told = told if told.is_file() else told / "node-0.log"
    fault.summary.write_text(trim.read_summary(told, folder / "peer"))
    pack(part_of(fault.name))


def make(fault: Fault, project: Path) -> Path:
    """What it left: a run's folder, a folder of logs, or a log."""
    if fault.made == "torchrun":
        return make_by_torchrun(fault, project)
    write_project(fault, project)
    argv = [sys.executable, "-m", "launcher", "run", "job.yaml", "--runs", "runs"]
    with beds.BEDS[fault.made](project) as bed, around(fault, project, bed) as env:
        env = bed.env | env
        started = Started([*argv, *bed.options], project, project / "screen", env, bed)
        follow(fault, started, fault.limit_s)
    return find_run(project) or project / "screen"


def find_run(project: Path) -> Path | None:
    """None where the launcher refused before it made a run: then its words are all there is."""
    plans = [*project.glob("left/*/plan.json"), *project.glob("runs/*/plan.json")]
    return next((plan.resolve().parent for plan in plans), None)


def make_by_torchrun(fault: Fault, project: Path, limit_s: float = 0.0) -> Path:
    """Its log, or a folder: where there are several nodes, or torchrun has logs of its own.

    An option with a number before it, as in ``1:--master-port=9``, is for that node alone.
    """
    write_project(fault, project)
    nnodes = int(fault.job.get("nnodes", 1))
    bed = Bed(options=())
    with around(fault, project, bed) as env, surroundings.free_port(project, bed) as free:
        nodes = []
        for node in range(nnodes):
            argv = [f"{sys.prefix}/bin/torchrun"]
            argv += [f"--nproc-per-node={fault.job.get('nproc_per_node', 2)}"]
            if nnodes > 1:
                argv += [f"--nnodes={nnodes}", f"--node-rank={node}"]
                argv += ["--master-addr=127.0.0.1", f"--master-port={free['PORT']}"]
            for option in fault.job.get("torchrun", ()):
                one, _, rest = option.partition(":-")
                if one == str(node) or not one.isdigit():
                    argv.append((f"-{rest}" if one.isdigit() else option).format(**env))
            argv += ["train.py", *fault.args]
            log = project / "logs" / f"node-{node}.log"
            nodes.append(Started(argv, project, log, dict(fault.job.get("env", {})) | env))
        for started in nodes:
            follow(fault, started, limit_s or fault.limit_s)
    logs = list((project / "logs").iterdir())
    return logs[0] if len(logs) == 1 else project / "logs"


def write_project(fault: Fault, project: Path) -> None:
    project.mkdir(parents=True)
    (project / "logs").mkdir()
    (project / "train.py").write_text(fault.script.replace("{START}\n", START))
    for name, text in fault.files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    keys = {key: value for key, value in fault.job.items() if key != "torchrun"}
    job = {"name": "fault", "command": ["train.py", *fault.args], "nproc_per_node": 2, **keys}
    (project / "job.yaml").write_text(yaml.safe_dump(job, sort_keys=False))


@contextmanager
def around(fault: Fault, project: Path, bed: Bed) -> Iterator[dict[str, str]]:
    """All of its surroundings; gives the variables of whoever types the command."""
    with ExitStack() as stack:
        env = dict(fault.env)
        for name in fault.around:
            enter: Callable[..., object] = getattr(surroundings, name)
            env |= stack.enter_context(enter(project, bed))  # type: ignore[arg-type]
        yield env


class Started:
    """A command that runs, and the screen on which it writes."""

    def __init__(
        self,
        argv: list[str],
        project: Path,
        screen: Path,
        env: dict[str, str],
        bed: Bed | None = None,
    ) -> None:
        self.project, self.screen, self.bed = project, screen, bed
        prefix = shlex.split(env.pop("COMMAND_PREFIX", ""))
        usual = {"PYTHONPATH": str(trim.ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with screen.open("wb") as file:
            self.process = subprocess.Popen(
                [*prefix, *argv],
                cwd=project,
                env=os.environ | usual | env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def told(self) -> str:
        return self.screen.read_text(errors="replace")

    @property
    def run_id(self) -> str:
        """Of the run that the launcher has made."""
        run = find_run(self.project)
        assert run is not None, self.told()
        return run.name

    def is_ready(self) -> bool:
        """Its script has said so, or its pods are awaited."""
        if self.bed is not None and "kubernetes" in self.bed.options:
            submitted = any(self.project.glob("runs/*/submitted.json"))
            return submitted and find_run(self.project) is not None
        return any(line.split()[-1:] == ["ready"] for line in self.told().splitlines())


def follow(fault: Fault, started: Started, limit_s: float) -> None:
    """Until the command has ended; one that does not is interrupted, as a person would do."""
    process = started.process
    try:
        if fault.then:
            wait_until(lambda: started.is_ready() or process.poll() is not None, started.told)
            getattr(surroundings, fault.then)(started)
        deadline = time.monotonic() + limit_s
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if process.poll() is None and (run := find_run(started.project)):
            shutil.copytree(run, started.project / "left" / run.name)
    finally:
        for signum, patience_s in ((signal.SIGINT, 45.0), (signal.SIGKILL, 10.0)):
            if process.poll() is None:
                os.killpg(process.pid, signum)
                try:
                    process.wait(patience_s)
                except subprocess.TimeoutExpired:
                    continue
