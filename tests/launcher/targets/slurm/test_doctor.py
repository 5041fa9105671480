"""What ``doctor --on slurm`` makes of what Slurm's commands print, as recorded on Slurm 22.05."""

import pytest

from launcher.doctor.finding import Status
from launcher.targets.slurm import doctor


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
        (
            "sbatch: error: invalid partition specified: nope\n"
            "allocation failure: Invalid partition name specified",
            "--set slurm.partition=NAME",
        ),
        ("allocation failure: Requested node configuration is not available", "fewer nodes"),
        ("allocation failure: Invalid feature specification", "slurm.constraint"),
        ("allocation failure: Requested reservation is invalid", "slurm.reservation"),
        ("allocation failure: Unable to contact slurm controller (connect failure)", "scontrol"),
        (
            "sbatch: error: QOSMaxSubmitJobPerUserLimit\nallocation failure: Job violates "
            "accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "squeue --me",
        ),
        ("allocation failure: something new", "ask an admin"),
    ],
)
def test_what_slurm_refuses_is_told_in_its_words_with_the_fix(words, fix):
    finding = doctor.judge_submission(words, accepted=False)
    assert finding.status is Status.FAILED
    assert words.splitlines()[-1] in finding.found
    assert fix in finding.fix


def test_a_script_that_slurm_would_take_is_told_with_its_start():
    words = "sbatch: Job 18 to start at 1970-01-01T05:00:00 using 3 processors on nodes n[1-3]"
    finding = doctor.judge_submission(words, accepted=True)
    assert (finding.status, finding.found) == (Status.OK, words.removeprefix("sbatch: "))
