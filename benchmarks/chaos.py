"""``python -m benchmarks.chaos``: a training in containers under one failure after the other.

Trains once undisturbed and once with a random failure every few seconds, then compares the final
weights' hashes. Exit codes: 0 they are equal, 1 they are not or a run failed, 2 a wrong argument.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.commands import ROOT
from fabric_train.checkpointing.lineage import Lineage
from launcher.contract import protocol
from launcher.runs.folder import RunFolder
from launcher.runs.goodput import Goodput
from launcher.runs.ledger import read_train_ledger
from launcher.runs.plot import draw_course
from launcher.runs.report import read_postmortem

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
NODES = 3
CALM_S = (1.0, 4.0)
"""Between the first step after a failure and the next failure."""
OUT_S = (3.0, 6.0)
"""How long a node stays frozen, or cut off."""
RECOVERY_LIMIT_S = 600.0
"""Generous: where two cores serve everybody, three nodes take minutes to import torch."""
RUN_LIMIT_S = 3600.0
DETECTION_LIMIT_S = 5
UNMOVED_S = 2.0 * DETECTION_LIMIT_S

JOB = """
name: chaos
command: [-m, {program}, --reduction=exact, --dropout=0.1, --max_grad_norm=1.0,
          --epochs={epochs}, --max_steps={steps}, --checkpoint_every_s=1, --virtual_shards=6,
          --global_batch_size=48]
image: {image}
nnodes: "1:{nodes}"
nproc_per_node: 1
max_restarts: 1000
start: fork
workdir: /code
mounts: ["{root}:/code:ro"]
env: {{PYTHONPATH: /code}}
agent: {{detection_limit_s: {detection_s}, same_failure_limit: 1000}}
"""

PROGRAMS = {"job.yaml": "benchmarks.paced_train", "quiet.yaml": "train"}
"""Only the run that waits for its failures is held back."""

DEEPEST = """
import os, signal
parents = {}
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        parents[int(name)] = int(open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[1])
    except OSError:
        pass
parents.pop(os.getpid(), None)
def depth(pid):
    return 1 + depth(parents[pid]) if pid in parents else 0
worker = max((pid for pid in parents if depth(pid) > 3), key=depth, default=None)
if worker is None:
    raise SystemExit("no worker")
os.kill(worker, signal.SIGKILL)
"""
"""Kills the process furthest from PID 1: supervisor, agent, fork server, guard, worker."""


class ChaosError(Exception):
    """The experiment could not be made, or ended other than it should."""


@dataclass(kw_only=True)
class Experiment:
    """One disturbed run, while it goes on."""

    engine: Any
    run: RunFolder
    process: Command
    dice: random.Random
    size: int = NODES
    survived: Counter[str] = field(default_factory=Counter)

    def nodes(self) -> list[Any]:
        """The containers that run, by node index."""
        label = f"{protocol.LABEL_RUN_ID}={self.run.run_id}"
        found = self.engine.containers.list(filters={"label": label, "status": "running"})
        return sorted(found, key=lambda each: int(each.labels[protocol.LABEL_NODE_INDEX]))

    def strike(self, kind: str) -> None:
        """Makes one failure happen; a node that is out comes back before this returns."""
        nodes = self.nodes()
        if not nodes:
            raise ChaosError("no node of the run is there")
        FAULTS[kind](self, self.dice.choice(nodes))
        self.survived[kind] += 1

    def first_steps(self) -> int:
        """How often the training has got under way so far."""
        return sum(event.name == "first-step" for event in read_train_ledger(self.run))

    def is_unmoved(self, since: float) -> bool:
        """Whether the training has committed long after ``since``, in seconds since the epoch.

        A node that was out for less than the detection limit costs no start.
        """
        later = since + UNMOVED_S
        ledger = read_train_ledger(self.run)
        return any(event.name == "saved" and event.at > later for event in ledger)

    def wait_for_training(self, starts: int) -> bool:
        """Until the training has got under way ``starts`` times, or never noticed.

        False where the run has ended.
        """
        began_at = time.time()
        deadline = time.monotonic() + RECOVERY_LIMIT_S
        while self.first_steps() < starts and not self.is_unmoved(began_at):
            if self.process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise ChaosError(f"no training within {RECOVERY_LIMIT_S:g} s after a failure")
            time.sleep(0.1)
        return True


def kill_worker(experiment: Experiment, node: Any) -> None:
    """SIGKILL to a training process."""
    node.exec_run(["python", "-c", DEEPEST])


def kill_node(experiment: Experiment, node: Any) -> None:
    """A node's power goes."""
    node.kill()


def take_node_0(experiment: Experiment, node: Any) -> None:
    """The node that coordinates the run goes."""
    experiment.nodes()[0].kill()


def freeze_node(experiment: Experiment, node: Any) -> None:
    """A node stands still, and wakes not knowing it."""
    node.pause()
    time.sleep(experiment.dice.uniform(*OUT_S))
    node.unpause()


def cut_network(experiment: Experiment, node: Any) -> None:
    """A node computes on alone, and is heard again."""
    (network,) = experiment.engine.networks.list(names=[experiment.run.run_id])
    network.disconnect(node)
    time.sleep(experiment.dice.uniform(*OUT_S))
    network.connect(node)


def scale(experiment: Experiment, node: Any) -> None:
    """A node is given back, or added."""
    experiment.size = NODES - 1 if experiment.size == NODES else NODES
    folder = experiment.run.path.parents[1]
    finish(Command("scale", experiment.run.run_id, str(experiment.size), cwd=folder))


FAULTS: dict[str, Callable[[Experiment, Any], None]] = {
    "kill a worker": kill_worker,
    "kill a node": kill_node,
    "take node 0": take_node_0,
    "freeze a node": freeze_node,
    "cut a network": cut_network,
    "scale": scale,
}


def plan_faults(count: int, dice: random.Random) -> list[str]:
    """Every kind equally often, as far as ``count`` goes, in a random order."""
    kinds: list[str] = []
    while len(kinds) < count:
        kinds += dice.sample(list(FAULTS), len(FAULTS))
    return kinds[:count]


class Command(subprocess.Popen[bytes]):
    """A command of the launcher. What it says goes to a file: a full pipe would hold it up."""

    def __init__(self, *argv: str, cwd: Path) -> None:
        # Closed with the process.
        self.said = tempfile.TemporaryFile()  # noqa: SIM115
        super().__init__(
            [sys.executable, "-m", "launcher", *argv],
            cwd=cwd,
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=self.said,
        )


def finish(process: Command) -> None:
    """Waits for a command's end; raises ChaosError unless it was a good one."""
    try:
        process.wait(RUN_LIMIT_S)
    finally:
        end(process)
    if process.returncode:
        process.said.seek(0)
        said = process.said.read().decode()
        raise ChaosError(f"{' '.join(map(str, process.args[2:4]))} failed:\n{said[-3000:]}")


def end(process: Command) -> None:
    """Asks first: the launcher takes its containers along only if it may."""
    if process.poll() is None:
        process.terminate()
        process.wait(90)


def train_quietly(folder: Path) -> str:
    """The weights' hash of the same training on one node that nothing happens to."""
    finish(Command("run", "quiet.yaml", "--on", "docker", "--nnodes", "1", cwd=folder))
    return str(read_outcome(folder)["metrics"]["weights_sha256"])


def train_in_chaos(folder: Path, faults: Sequence[str], dice: random.Random) -> Experiment:
    """The run after all its failures, ended well."""
    import docker

    before = {path.name for path in (folder / "runs").glob("chaos-*")}
    process = Command("run", "job.yaml", "--on", "docker", cwd=folder)
    try:
        run = RunFolder(wait_for_run(folder / "runs", before, process))
        engine = docker.from_env()
        experiment = Experiment(engine=engine, run=run, process=process, dice=dice)
        experiment.wait_for_training(1)
        for number, kind in enumerate(faults, 1):
            time.sleep(dice.uniform(*CALM_S))
            starts = experiment.first_steps()
            if process.poll() is not None:
                break
            print(f"{number:3}/{len(faults)}  {kind}")
            experiment.strike(kind)
            if not experiment.wait_for_training(starts + 1):
                break
        finish(process)
    finally:
        end(process)
    return experiment


def wait_for_run(runs: Path, before: set[str], process: Command) -> Path:
    """The folder of the run that has just been submitted."""
    deadline = time.monotonic() + RECOVERY_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        for path in runs.glob("chaos-*"):
            if path.name not in before and (path / protocol.PLAN_FILE).exists():
                return path
        time.sleep(0.1)
    raise ChaosError("the run did not start")


def read_outcome(folder: Path) -> dict[str, Any]:
    """The newest run's outcome."""
    found: dict[str, Any] = json.loads(
        (folder / "runs" / protocol.LATEST_LINK / protocol.OUTCOME_FILE).read_text()
    )
    return found


def count_samples(run: RunFolder, batch_size: int) -> tuple[int, int]:
    """Samples lost and repeated: where a start's first step is not the one after its base's last.

    Compares what the training said that it loaded with what the lineage notes.
    """
    bases = {
        start.writer.generation: start.base.step if start.base else 0
        for start in Lineage(run.path / protocol.CHECKPOINTS_DIR).read_starts()
    }
    generation, lost, repeated = None, 0, 0
    for event in sorted(read_train_ledger(run), key=lambda each: each.at):
        if event.name == "train-started":
            generation = event.values["generation"]
        elif event.name == "loaded" and generation in bases:
            gap = int(event.values["step"]) - bases[generation]
            lost, repeated = lost + max(0, gap), repeated + max(0, -gap)
    return lost * batch_size, repeated * batch_size


def read_goodput(run: RunFolder) -> Goodput:
    """What the time of a run that has ended went to."""
    outcome = run.read_outcome()
    if outcome is None:
        raise ChaosError(f"{run.run_id} has no outcome")
    plan, ended_at = run.read_plan(), outcome.finished_at
    told = read_postmortem(run, plan, outcome.state, outcome, ended_at, {})
    if told.goodput is None:
        raise ChaosError(f"{run.run_id} has no training ledger")
    return told.goodput


def render_result(
    experiment: Experiment, goodput: Goodput, quiet: str, metrics: dict[str, Any]
) -> Iterator[str]:
    """The lines that are printed at the end."""
    lost, repeated = count_samples(experiment.run, int(metrics["global_batch_size"]))
    disturbed = metrics["weights_sha256"]
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(experiment.survived.items()))
    yield f"failures survived     {experiment.survived.total()} ({kinds})"
    yield f"starts of training    {goodput.starts}, {goodput.lost_steps} steps made again"
    yield f"samples lost          {lost}"
    yield f"samples repeated      {repeated}"
    yield f"goodput               {goodput.share:.1%} of {goodput.wall_s:.0f} s"
    yield f"weights, undisturbed  {quiet}"
    yield f"weights, disturbed    {disturbed}"
    yield "the weights are the same" if disturbed == quiet else "THE WEIGHTS DIFFER"


def main(arguments: Sequence[str]) -> int:
    """Makes the experiment and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=10, help="how many failures")
    parser.add_argument("--seed", type=int, default=0, help="of kinds, places and times")
    parser.add_argument("--steps-per-fault", type=int, default=60)
    parser.add_argument("--image", default="fabric-train:cpu")
    parser.add_argument("--svg", type=Path, help="where to draw loss, workers and failures")
    options = parser.parse_args(arguments)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    dice = random.Random(options.seed)
    steps = options.steps_per_fault * (options.faults + 1)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        for file, program in PROGRAMS.items():
            job = JOB.format(
                program=program,
                steps=steps,
                epochs=steps // 28 + 1,
                nodes=NODES,
                root=ROOT,
                image=options.image,
                detection_s=DETECTION_LIMIT_S,
            )
            (folder / file).write_text(job)
        try:
            print(f"{steps} steps undisturbed, then with {options.faults} failures")
            quiet = train_quietly(folder)
            experiment = train_in_chaos(folder, plan_faults(options.faults, dice), dice)
            goodput = read_goodput(experiment.run)
        except ChaosError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        metrics = read_outcome(folder)["metrics"]
        for line in render_result(experiment, goodput, quiet, metrics):
            print(line)
        if options.svg:
            drawn = draw_course({experiment.run.run_id: goodput}, by="time")
            options.svg.write_text(drawn.replace("<svg", '<svg style="background: white"', 1))
    met = experiment.survived.total()
    if met < options.faults:
        print(f"error: the training ended after {met} failures", file=sys.stderr)
    return int(metrics["weights_sha256"] != quiet or met < options.faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
