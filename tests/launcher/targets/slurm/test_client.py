"""Commands of Slurm that are missing, silent or refused. What they answer: tests/slurm."""

import pytest

from launcher.targets.slurm import client


def test_a_machine_without_slurm_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(client.SlurmError) as caught:
        client.run_command("sbatch", "--version")
    assert "sbatch: No such file or directory" in str(caught.value)
    assert "on a login node of the cluster" in str(caught.value)
    assert not caught.value.is_away


def test_a_command_that_this_machine_cannot_start_now_is_tried_again(commands):
    with pytest.raises(client.SlurmError, match="squeue: Argument list too long") as caught:
        client.run_command("squeue", "x" * 1_000_000)
    assert (caught.value.is_away, "ulimit -u" in caught.value.hint) == (True, True)


@pytest.mark.parametrize(
    ("lines", "said", "is_away"),
    [
        ("echo 'squeue: error: Unable to contact slurm controller' >&2", "error: Unable", True),
        ("echo 'error: Socket timed out on send/recv operation' >&2", "error: Socket timed", True),
        ("echo 'error: invalid partition specified: x' >&2", "error: invalid", False),
        ("echo 'a wrapper of the site'", "a wrapper of the site", False),
        ("true", "exit code 1", False),
    ],
)
def test_a_controller_that_is_away_is_known_by_its_clients_words(commands, lines, said, is_away):
    commands.does("squeue", f"{lines}; exit 1")
    with pytest.raises(client.SlurmError, match=f"squeue: {said}") as caught:
        client.run_command("squeue")
    assert caught.value.is_away == is_away
    assert ("scontrol ping" in caught.value.hint) == is_away


def test_a_new_job_gets_nothing_of_the_job_around_it():
    environ = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "8",
        "SBATCH_PARTITION": "other",
        "SRUN_CPUS_PER_TASK": "2",
        "SQUEUE_PARTITION": "high",
    }
    kept = client.without_defaults(environ)
    assert kept == {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf"}


def test_jobs_of_a_run_are_found_by_their_comment(commands):
    lines = ("14|launcher:tiny-1", "12|launcher:tiny-1", "13|(null)", "12|launcher:tiny-1")
    commands.prints("squeue", *lines, "15|launcher:tiny-12")
    assert client.find_jobs("tiny-1") == (12, 14)
    assert commands.calls() == ["squeue --me --noheader --format=%F|%k"]


QUEUE = """\
[ -z "$SQUEUE_PARTITION" ] || exit 1
echo '12|12|N/A|RUNNING|None|launcher:tiny-1'
echo '14|13|1|PENDING|BeginTime|(null)'
echo '13|13|2|PENDING|Priority|a | b'
echo 'slurm: a warning'
"""


def test_the_queue_is_told_whole_whatever_filter_a_person_likes(commands, monkeypatch):
    monkeypatch.setenv("SQUEUE_PARTITION", "high")
    commands.does("squeue", QUEUE)
    running, held, waiting = client.read_queue([13, 12])
    assert (held.name, waiting.why, running.state) == ("13_1", "Priority", "RUNNING")
    assert (running.run_id, held.run_id, waiting.run_id) == ("tiny-1", "", "")
    assert [job.job_id for job in (running, held, waiting)] == [12, 14, 13]
    (call,) = commands.calls()
    assert "--states=all --jobs=12,13 --format=" in call
    assert (client.read_queue([]), commands.calls()) == ((), [])


@pytest.mark.parametrize(
    "ask",
    [
        lambda: client.read_queue([7]),
        lambda: client.cancel(["7_1", "8"]),
    ],
)
def test_a_job_that_slurm_has_forgotten_is_no_error(commands, ask):
    for name in ("squeue", "scancel"):
        commands.prints(name, f"{name}: error: Invalid job id specified", code=1)
    assert ask() in (None, ())
    for name in ("squeue", "scancel"):
        commands.prints(name, f"{name}: error: Access denied", code=1)
    with pytest.raises(client.SlurmError, match="error: Access denied"):
        ask()
    assert {call.partition(" --format")[0] for call in commands.calls()} <= {
        "squeue --noheader --array --states=all --jobs=7",
        "scancel 7_1 8",
    }


def test_nobody_is_asked_to_cancel_nothing_and_the_cluster_is_asked_for_once(commands):
    client.cancel([])
    assert commands.calls() == []
    commands.prints("scontrol", "Configuration data", "ClusterName             = hpc", "X = 1")
    assert [client.read_cluster(), client.read_cluster()] == ["hpc", "hpc"]
    assert commands.calls() == ["scontrol show config"]
    client.read_cluster.cache_clear()
    commands.prints("scontrol", "nothing of it")
    assert client.read_cluster() == ""


def test_sbatch_has_more_time_as_a_job_whose_id_nobody_learns_is_lost(
    tmp_path, commands, monkeypatch
):
    monkeypatch.setattr(client, "LIMIT_S", 0.1)
    commands.does("sbatch", "exec sleep 60")
    with pytest.raises(client.SlurmError, match=r"sbatch gave no answer within 0\.3 s") as caught:
        client.submit_script(tmp_path / "a.sh", "--array=1")
    assert caught.value.is_away
    with pytest.raises(client.SlurmError, match=r"sbatch gave no answer within 0\.1 s"):
        client.try_script(tmp_path / "a.sh")
