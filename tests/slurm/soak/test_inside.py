"""Runs inside of an allocation that is there already, and nodes that srun starts."""

import shutil

import pytest

from tests.launcher.targets.starter.soak.test_node import WAITING
from tests.launcher.targets.starter.test_node import JOB, SUM
from tests.slurm.claims.test_inside import LIMIT_S, site

pytestmark = pytest.mark.slurm
DEAF = WAITING.replace("signal.SIG_DFL", "signal.SIG_IGN")


@pytest.mark.parametrize(("script", "grace"), [(WAITING, ()), (DEAF, ("--grace", "0"))])
def test_a_stop_ends_the_step_and_leaves_the_allocation(site, cluster, script, grace):
    site.launcher.write(script, JOB)
    lines = "./launcher run job.yaml; echo code $?; srun --ntasks-per-node=1 echo still mine"
    shell = site.type("salloc", "--nodes=2", "sh", "-c", lines)
    site.wait_up(2)
    site.launcher.well("stop", *grace)
    out, err = shell.communicate(timeout=LIMIT_S)
    assert "code 143" in out, err
    assert out.count("still mine") == 2


def test_the_shell_of_a_step_has_the_allocation_too(site, cluster):
    if shutil.which("script") is None:
        pytest.skip("no program script, which makes a terminal")
    site.launcher.write(SUM, JOB)
    inner = "srun --nodes=1 --ntasks=1 --pty ./launcher run job.yaml"
    code, out, err = site.finish(
        "salloc", "--nodes=2", "script", "--quiet", "--return", "--command", inner, "/dev/null"
    )
    assert code == 0, out + err
    assert "2 of its 2 nodes" in out
    assert "sum 2 of node 1" in out


def test_first_lines_may_take_long_and_may_fail(site, cluster):
    site.launcher.write(SUM, JOB)
    long = "./launcher run job.yaml --set 'slurm.setup=[sleep 20]'; echo code $?"
    code, out, err = site.finish("salloc", "--nodes=1", "sh", "-c", long)
    assert "code 0" in out, err
    failing = "./launcher run job.yaml --set 'slurm.setup=[echo no such module, exit 3]'"
    code, out, err = site.finish("salloc", "--nodes=1", "sh", "-c", failing)
    assert (code, "no such module" in err) == (1, True), err


def test_a_hold_in_an_allocation_has_its_nodes(site, cluster):
    site.launcher.write(SUM, JOB)
    lines = (
        "./launcher hold --name dev --nproc-per-node 1 && ./launcher run job.yaml --in dev; "
        "./launcher stop dev; srun --ntasks-per-node=1 echo still mine"
    )
    code, out, err = site.finish("salloc", "--nodes=2", "sh", "-c", lines)
    assert code == 0, err
    assert {"[0/0] sum 2 of node 0", "[1/1] sum 2 of node 1"} <= set(out.splitlines()), err
    assert out.count("still mine") == 2
    assert cluster.calls["sbatch"] == 0
