"""The token of a run on hosts: it comes by ssh's standard input, and goes with the run."""

import pytest

from tests.launcher.run_token import JOB, LOOKING, check_folder, check_found
from tests.programs import run_program

pytestmark = pytest.mark.hosts


@pytest.mark.docker
def test_containers_of_hosts_meet_by_it_and_keep_it_to_the_user(typist, four_engines):
    typist.write(LOOKING, "hosts: {runtime: docker}\n", JOB)
    done = typist.well("run", "job.yaml")
    check_found(done.stdout)
    check_folder(typist.folder / "runs/latest", done.stdout, done.stderr)


def test_a_printed_script_sends_one_of_its_own(typist, four_hosts):
    typist.write(LOOKING, "hosts: {runtime: python}\n", JOB)
    script = typist("render", "job.yaml", "--on", "hosts", "--embed").stdout
    (typist.folder / "run.sh").write_text(script)
    code = ["tar", "-czf", "code.tar.gz", "-C", str(typist.folder), "train.py"]
    assert run_program(code, cwd=typist.folder, env=typist.env, timeout=30).returncode == 0
    env = typist.env | {"CODE": "code.tar.gz"}
    done = run_program(["bash", "run.sh"], cwd=typist.folder, env=env, timeout=100)
    assert done.returncode == 0, done.stderr
    check_found(done.stdout.replace("\r", ""))
    for host in four_hosts.hosts:
        host.run("rm", "-rf", "/root/.launcher/runs", "/root/.launcher/checkpoints")
