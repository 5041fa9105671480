"""A run that one machine follows, as another machine sees and steers it by its hosts alone."""

import json
import subprocess

import pytest

from tests.hosts.typist import Typist
from tests.waiting import wait_until

pytestmark = pytest.mark.hosts
TALKING = """
import os, time
for i in range(100_000):
    print(f"{os.environ['WORLD_SIZE']} line {i}", flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
def elsewhere(typist: Typist, tmp_path_factory: pytest.TempPathFactory) -> Typist:
    return Typist(tmp_path_factory.mktemp("elsewhere"), typist.network)


def test_a_followed_run_is_seen_scaled_and_stopped_from_another_machine(typist, elsewhere):
    typist.write(TALKING, f"checkpoint_dir: {typist.folder}/checkpoints\n")
    launcher = typist.start("run", "job.yaml", "--nnodes", "1:2")
    wait_until(lambda: "2 line" in typist("logs", "latest").stdout)
    (run_id,) = typist.run_ids()

    (row,) = json.loads(elsewhere("ps", "--json").stdout)
    assert (row["run_id"], row["state"], row["nnodes"]) == (run_id, "running", 2)
    status = json.loads(elsewhere("status", run_id, "--json").stdout)
    assert (status["state"], [n["state"] for n in status["nodes"]]) == ("running", ["running"] * 2)

    path = elsewhere.folder / "followed"
    with path.open("wb") as file:
        argv = elsewhere.argv("logs", run_id, "--follow")
        follower = subprocess.Popen(argv, cwd=elsewhere.folder, env=elsewhere.env, stdout=file)
    wait_until(lambda: "[1/1] 2 line" in path.read_text())

    elsewhere.well("scale", run_id, "1")
    wait_until(lambda: "[0/0] 1 line" in path.read_text())
    told = elsewhere("report", run_id).stdout
    assert told.startswith(f"{run_id}: RUNNING on hosts"), told

    elsewhere.well("stop", run_id)
    assert launcher.wait(40) == 143
    assert typist.outcome["cause"] == "stop-requested"
    assert follower.wait(30) == 143, "the run's own code"
    for rank in ("[0/0] 2", "[0/0] 1"):
        lines = [line for line in path.read_text().splitlines() if line.startswith(rank)]
        assert lines == [f"{rank} line {i}" for i in range(len(lines))]
    assert elsewhere("stop", run_id).returncode == 0
