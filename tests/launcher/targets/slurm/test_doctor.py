"""What ``doctor --on slurm`` makes of what Slurm's commands print, as recorded on Slurm 22.05."""

from argparse import Namespace

import pytest

from launcher.doctor.finding import Status
from launcher.job.spec import JobSpec
from launcher.targets.slurm import doctor
from launcher.targets.slurm.room import SlurmRoom


def test_each_partition_is_a_row_with_its_limit_nodes_and_gpus():
    lines = ["main*|up|1-00:00:00|1/2/0/3|gpu:a100:2", "gpu|down|infinite|0/0/2/2|(null)", "?"]
    main, gpu = doctor.tell_partitions(lines)
    assert (main.where, main.status) == ("main*", Status.OK)
    assert main.found == "up, time limit 1-00:00:00, 2 of 3 nodes idle, gpu:a100:2"
    assert gpu.status is Status.WARNING
    assert gpu.found == "down, time limit infinite, 0 of 2 nodes idle, 2 down or drained"


def test_nodes_that_take_no_jobs_are_told_with_the_reason_that_was_given():
    (node,) = doctor.tell_lost_nodes(["n[2-3]|drained|ECC errors on GPU 1 | see ticket"])
    assert node.status is Status.WARNING
    assert node.found == "drained: ECC errors on GPU 1 | see ticket"
    assert "scontrol update NodeName=n[2-3] State=RESUME" in node.fix


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("sbatch: error: invalid partition specified: nope\nfailure: Invalid", "slurm.partition="),
        ("failure: Requested node configuration is not available", "fewer nodes"),
        ("failure: Invalid feature specification", "slurm.constraint"),
        ("failure: Requested reservation is invalid", "slurm.reservation"),
        ("failure: Unable to contact slurm controller (connect failure)", "scontrol"),
        ("error: QOSMaxSubmit\nfailure: Job violates accounting/QOS policy (time)", "squeue --me"),
        ("allocation failure: something new", "ask an admin"),
    ],
)
def test_what_slurm_refuses_is_told_in_its_words_with_the_fix(words, fix):
    finding = doctor.judge_submission(words, accepted=False)
    assert finding.status is Status.FAILED
    assert words.splitlines()[-1] in finding.found
    assert fix in finding.fix


UP = "Slurmctld(primary) at head is DOWN\\nSlurmctld(backup) at spare is UP"
TO_START = "sbatch: Job 18 to start at 1970-01-01T05:00:00 using 3 processors on nodes n[1-3]"
SOUND = {
    "scontrol": f"printf '{UP}\\n'",
    "sinfo": """case "$*" in *--list-reasons*) ;; *) echo 'gpu|up|1:00|0/2/0/2|(null)';; esac""",
    "sbatch": f"""case "$*" in --version) echo slurm 22.05;; *) echo '{TO_START}' >&2;; esac""",
}


def diagnose(commands, folder, given=None, **keys):
    for name, lines in SOUND.items():
        commands.does(name, keys.pop(name, lines))
    job = JobSpec.model_validate({"name": "digits", "command": ["-m", "train"], **keys})
    return list(SlurmRoom().diagnose(job, folder, 0.1, given))


def test_a_sound_cluster_is_asked_little_and_each_answer_is_a_row(commands, tmp_path):
    found = diagnose(commands, tmp_path, nnodes=3)
    assert [(f.check, f.where, f.status.value, f.found) for f in found] == [
        ("client", "this machine", "ok", "slurm 22.05"),
        ("slurmctld", "cluster", "ok", UP.replace("\\n", "; ")),
        ("partition", "gpu", "ok", "up, time limit 1:00, 2 of 2 nodes idle"),
        ("start", "sbatch", "ok", TO_START.removeprefix("sbatch: ")),
    ]
    assert "#SBATCH --nodes=3" in (tmp_path / "job.sh").read_text()
    assert [call.partition(" --format")[0] for call in commands.calls()] == [
        *("sbatch --version", "scontrol ping", "sinfo --noheader --all"),
        *("sinfo --noheader --all --list-reasons", f"sbatch --test-only {tmp_path}/job.sh"),
    ]
    diagnose(commands, tmp_path, slurm={"partition": "gpu"})
    assert commands.calls("sinfo")[0].startswith("sinfo --noheader --partition=gpu --format=")


NO_QOS = "[ $1 = --version ] || { echo 'sbatch: error: invalid qos'; exit 1; }"
HANGS, AWAY = "echo 'it hangs' >&2; exit 1", "echo 'timed out' >&2; exit 1"


@pytest.mark.parametrize(
    ("keys", "check", "fix", "rows"),
    [
        ({"engine": "torchrun"}, "plan", "remove engine: torchrun", 1),
        ({"sbatch": HANGS}, "client", "sinfo --summarize", 1),
        ({"sbatch": AWAY}, "client", "scontrol ping tells", 1),
        ({"scontrol": f"echo '{UP[:34]}'"}, "slurmctld", doctor.NO_ANSWER, 2),
        ({"scontrol": HANGS}, "slurmctld", doctor.NO_ANSWER, 2),
        ({"scontrol": AWAY}, "slurmctld", "scontrol ping tells", 2),
        # sbatch is asked all the same.
        ({"sinfo": HANGS}, "partition", doctor.NO_ANSWER, 4),
        ({"sinfo": AWAY}, "partition", "scontrol ping tells", 4),
        ({"sbatch": NO_QOS}, "start", "--set slurm.qos=NAME", 4),
    ],
)
def test_what_is_wrong_is_a_row_with_a_fix(commands, tmp_path, keys, check, fix, rows):
    found = diagnose(commands, tmp_path, **keys)
    (failed,) = (f for f in found if f.status is Status.FAILED)
    assert (failed.check, failed.fix[: len(fix)], len(found)) == (check, fix, rows)


@pytest.mark.parametrize("was_there", [False, True])
def test_a_test_job_that_does_not_start_is_told_and_leaves_nothing(commands, tmp_path, was_there):
    runs = tmp_path / "deep/runs"
    if was_there:
        runs.mkdir(parents=True)
    submit = f'for file; do :; done; cp "$file" {tmp_path}/sent; echo 9'
    sbatch = SOUND["sbatch"].replace("*)", f"--parsable*) {submit};; *)")
    given = Namespace(runs=str(runs), test_job=True)
    keys = {"nnodes": 3, "slurm": {"time": "90", "requeue": True}}
    last = diagnose(commands, tmp_path, given, sbatch=sbatch, **keys)[-1]
    assert (last.check, last.found) == ("test job", "did not succeed within 0.1 s")
    assert last.fix == "squeue --start --me; or --limit SECONDS"
    sent = (tmp_path / "sent").read_text()
    for option in ("--nodes=1", "--no-requeue", "--time=5", "--signal=B:USR1@40"):
        assert f"#SBATCH {option}\n" in sent
    assert runs.is_dir() == was_there
    assert not was_there or not list(runs.iterdir())


def test_a_test_job_that_is_refused_has_not_waited(commands, tmp_path):
    refused = "--parsable*) echo 'sbatch: error: invalid qos' >&2; exit 1;; *)"
    sbatch = SOUND["sbatch"].replace("*)", refused)
    given = Namespace(runs=str(tmp_path / "runs"), test_job=True)
    job = JobSpec.model_validate({"name": "digits", "command": ["-m", "train"]})
    for name, lines in (SOUND | {"sbatch": sbatch}).items():
        commands.does(name, lines)
    last = list(SlurmRoom().diagnose(job, tmp_path, 60, given))[-1]
    assert (last.check, last.where) == ("start", "1 node")
    assert "invalid qos" in last.found


def test_a_run_folder_that_cannot_be_made_is_a_row(commands, tmp_path):
    (tmp_path / "runs").write_text("in the way")
    given = Namespace(runs=str(tmp_path / "runs/below"), test_job=True)
    last = diagnose(commands, tmp_path, given)[-1]
    assert (last.check, last.where) == ("run folder", f"{tmp_path}/runs/below")
