"""The batch script submitted by hand, with a stand-in for the agent: what Slurm makes of it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.targets.slurm.script import render_script
from tests.launcher.targets.slurm.test_script import plan
from tests.slurm.cluster import Cluster
from tests.slurm.typist import ROOT
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]
AGENT = (
    f"""
import json, os, pathlib, sys, time
sys.path.insert(0, {str(ROOT)!r})
if sys.argv[1] == "job":
    from launcher.agent import batch_job
    sys.exit(batch_job.main(sys.argv[2:]))
"""
    + """
run = pathlib.Path(os.environ["LAUNCHER_STOP_FILE"]).parents[1]
index = os.environ.get("SLURM_ARRAY_TASK_ID", os.environ["SLURM_PROCID"])
start = len(list(run.glob(f"nodes/{index}/*")))
folder = run / "nodes" / index / str(start)
folder.mkdir(parents=True)

def end(code, reason="a-b"):
    (folder / "new").write_text(json.dumps({"reason": reason, "exit_code": code}))
    (folder / "new").rename(folder / "outcome.json")
    os._exit(code)

codes = json.loads((run / "codes.json").read_text())[index]
if codes[start] is not None:
    end(codes[start])
while not (run / "go").exists():
    if pathlib.Path(os.environ["LAUNCHER_STOP_FILE"]).read_text():
        end(143)
    time.sleep(0.1)
end(0)
"""
)
"""Ends each start with the next of its node's codes; where that is null, when it is told to."""


class ByHand:
    """A script in its run's folder."""

    def __init__(self, cluster: Cluster, folder: Path, **keys: Any) -> None:
        self.cluster = cluster
        keys["slurm"] = {"python": sys.executable, **keys.get("slurm", {})}
        made = plan(str(folder / "runs"), str(folder), **keys)
        self.run = Path(made.run_dir)
        (self.run / "slurm").mkdir(parents=True)
        (self.run / "agent.pyz").write_text(AGENT)
        self.script = folder / "script.sh"
        self.script.write_text(render_script(made))

    def submit(self, *options: str, **codes: list[int | None]) -> str:
        """``node_0=[196, 0]``: how the starts of a node's agent end. The job's id."""
        known = {name.removeprefix("node_"): each for name, each in codes.items()}
        (self.run / "codes.json").write_text(json.dumps(known))
        return self.cluster.ask("sbatch", "--parsable", *options, self.script)

    def ends(self) -> dict[str, str]:
        found = sorted((self.run / "slurm").glob("*.ended"))
        return {path.stem: path.read_text().strip() for path in found}


def test_a_requeue_of_the_element_that_has_the_arrays_number_leaves_the_others(cluster, tmp_path):
    by_hand = ByHand(cluster, tmp_path, nnodes="1:3")
    job = by_hand.submit(node_0=[None], node_1=[None], node_2=[196, 0])
    wait_until(lambda: f"{job}_2.1" in by_hand.ends())
    (by_hand.run / "go").touch()
    cluster.wait_idle()
    assert by_hand.ends() == {
        f"{job}_0.0": "0 over",
        f"{job}_1.0": "0 over",
        f"{job}_2.0": "196 requeued",
        f"{job}_2.1": "0 over",
    }


def test_render_with_embed_works_by_sbatch_alone(cluster, tmp_path):
    """The real agent; neither the run's folder nor the launcher is there."""
    (tmp_path / "train.py").write_text("import os; print('rank', os.environ['RANK'])\n")
    made = plan(str(tmp_path / "runs"), str(tmp_path), nnodes=2, slurm={"python": sys.executable})
    script = tmp_path / "script.sh"
    script.write_text(render_script(made, embed=True))
    Path(made.run_dir, "slurm").mkdir(parents=True)
    cluster.ask("sbatch", script)
    cluster.wait_idle()
    said = sorted(path.read_text() for path in Path(made.run_dir).glob("nodes/*/0/*/*/stdout"))
    assert said == ["rank 0\n", "rank 1\n"]
    ended = [path.read_text().strip() for path in Path(made.run_dir).glob("slurm/*.ended")]
    assert ended == ["0 over"]
