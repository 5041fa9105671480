"""What is seen in the nodes of a run, on every target that needs an engine: each look travels."""

from tests.debugged import STOPS, debug_rank_1
from tests.launcher.looks import STUCK_FOUR_WAYS, check_four_ways, check_profile
from tests.launcher.targets.contract.benches import on
from tests.waiting import wait_until


@on("docker", "hosts", "slurm", "kubernetes")
def test_ranks_that_are_stuck_in_four_ways(bench):
    bench.write(STUCK_FOUR_WAYS)
    bench.begin(*bench.typed("run", nnodes="2"), "--nproc-per-node", "2")
    said: list[str] = []

    def is_told() -> bool:
        done = bench.launcher("stacks", "latest")
        said[:] = [done.stdout, done.stderr]
        return "have not entered" in done.stdout

    wait_until(is_told, lambda: "\n".join(said), limit_s=150)
    check_four_ways(said[0])
    early = bench.launcher("profile", "latest", "--seconds", "1")
    # Of those that py-spy can look at, seconds are recorded; no image here has it.
    assert early.stdout or "no training with fabric_train answers here yet" in early.stderr
    bench.launcher.well("stop", "--grace", "5")
    assert bench.started[0].wait(60) == 143


@on("docker", "hosts", "slurm")
def test_ranks_trace_the_same_steps(bench):
    _, _, *words = bench.typed("run", nnodes="2")
    checkpoints = f"checkpoint_dir={bench.folder}/checkpoints"
    bench.begin("run", "-m", "train", *words, "--set", checkpoints, "--", "--epochs=100000")
    wait_until((bench.folder / "runs/latest").exists)
    check_profile(bench.launcher, 2)
    bench.launcher.well("stop", "--grace", "5")
    assert bench.started[0].wait(60) == 143


@on("docker", "hosts", "slurm", "kubernetes")
def test_a_rank_on_the_second_node_stops_in_pdb_in_this_terminal(bench):
    bench.write(STOPS)
    _, *words = bench.typed("run", nnodes="2")
    debug_rank_1(bench.launcher, *words)
