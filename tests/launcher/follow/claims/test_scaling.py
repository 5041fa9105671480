from __future__ import annotations

import pytest

from launcher.contract.errors import InputError
from launcher.follow.requests import (
    check_scale,
    count_returned,
    read_withdrawn,
    request_scale,
    take_scale_request,
    write_size,
)
from launcher.runs.folder import RunFolder
from tests.waiting import wait_until

ELASTIC = """
import os, pathlib, time
told = f"world-{os.environ['WORLD_SIZE']}-{os.environ['LAUNCHER_NODE_INDEX']}"
pathlib.Path(f"{told}-{os.environ['LAUNCHER_INCARNATION']}").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("fields", "nodes", "words"),
    [
        ({"nnodes": "2:3"}, 1, "nnodes of digits-0a1b2c is 2:3"),
        ({"nnodes": "2:3"}, 4, "nnodes of digits-0a1b2c is 2:3"),
        ({"nnodes": 3}, 2, "fixed number of nodes"),
        ({"nnodes": "2:3", "engine": "torchrun"}, 2, "plain torchrun"),
    ],
)
def test_a_number_that_a_run_cannot_have_is_refused(make_plan, fields, nodes, words):
    with pytest.raises(InputError, match=words):
        check_scale(make_plan(**fields), nodes)


def test_the_nodes_above_the_size_last_asked_for_are_withdrawn(make_plan, tmp_path):
    run, plan = RunFolder(tmp_path), make_plan(nnodes="1:4")
    assert read_withdrawn(run, plan) == frozenset()
    request_scale(run, 3)
    assert take_scale_request(run) == 3
    assert read_withdrawn(run, plan) == {3}
    assert take_scale_request(run) is None
    assert count_returned(run) == 0
    for nodes in (1, 2, 2, 4):
        write_size(run, nodes)
    assert count_returned(run) == 3


def test_a_run_shrinks_and_grows_again_and_no_restart_is_used(launcher):
    launcher.write(ELASTIC)
    process = launcher.start("run", "job.yaml", "--on", "local", "--nnodes", "1:2")
    wait_until(lambda: (launcher.folder / "world-2-1-0").exists())
    assert launcher("scale", "latest", "1").returncode == 0
    wait_until(lambda: (launcher.folder / "world-1-0-0").exists())
    assert launcher("scale", "2").returncode == 0
    wait_until(lambda: (launcher.folder / "world-2-1-1").exists())
    (launcher.folder / "go").touch()
    _, stderr = process.communicate(timeout=90)
    assert process.returncode == 0, stderr.decode()
    assert "worker-fault" not in launcher.outcome["restarts"]
    assert launcher.outcome["attempts"] == 1
    assert b"survived" not in stderr, "no node was lost"
