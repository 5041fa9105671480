"""``doctor``: real probes on real targets, and what follows from answers that tell of a fault."""

import pytest

from tests.launcher.docker_runs import MOUNTED
from tests.launcher.doctor.test_doctor import rows
from tests.launcher.runner import PREFIX


@pytest.mark.parametrize(
    ("argv", "told", "fix"),
    [
        ((), "no job file is named", "launcher doctor --hosts hosts.yaml"),
        (("job.yaml", "--on", "hosts"), "no hosts are named", "--hosts hosts.yaml"),
        (("job.yaml", "--on", "mars"), "--on mars: no such target", "one of: docker"),
    ],
)
def test_bad_input_is_refused_with_the_fix(launcher, argv, told, fix):
    launcher.write("", PREFIX)
    launcher.env.pop("LAUNCHER_HOSTS", None)
    done = launcher.fails(2, "doctor", *argv)
    assert told in done
    assert fix in done
    assert done.count("\n") <= 2


def test_a_probe_that_fails_tells_the_workers_own_exception(launcher):
    launcher.write("", PREFIX + "env: {GLOO_SOCKET_IFNAME: nosuch0}\n")
    done = launcher("doctor", "job.yaml", "--on", "local")
    assert done.returncode == 1
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("failed")]
    assert "RuntimeError: " in row
    assert row.endswith("Unable to find address for: nosuch0")


@pytest.mark.docker
def test_two_containers_are_fit_and_a_small_shm_is_warned_of(launcher):
    launcher.write("", MOUNTED)
    done = launcher.well(
        *("doctor", "job.yaml", "--on", "docker", "--nnodes", "2", "--json"),
        *("--set", "resources.shm=64Mi"),
    )
    found = rows(done.stdout)
    assert found["/dev/shm"] == ("warning", "0.1 GiB")
    assert found["all-reduce"][0] in ("ok", "warning")  # on a busy machine it is slow
