"""What ``doctor --on slurm`` makes of what Slurm's commands print, as recorded on Slurm 22.05."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from launcher.doctor.finding import Finding, Status
from launcher.job.spec import JobSpec
from launcher.targets.slurm import doctor_fit, doctor_job, doctor_judge, site
from launcher.targets.slurm.doctor_fit import SlurmRequest, parse_request
from launcher.targets.slurm.doctor_job import ANSWER, _TestJob, render_test_job
from launcher.targets.slurm.plan import plan_slurm

NODES = """\
n1|vm|main*|idle|2|4000|gpu:a100:2|a100,ib|22.05.8|none
n1|vm|gpu|idle|2|4000|gpu:a100:2|a100,ib|22.05.8|none
n2|vm|main*|idle|2|4000|gpu:a100:2|a100,ib|22.05.8|none
n2|vm|gpu|idle|2|4000|gpu:a100:2|a100,ib|22.05.8|none
n3|vm|main*|idle|2|4000|(null)|(null)|22.05.8|none
n3|vm|closed|idle|2|4000|(null)|(null)|22.05.8|none
"""
PARTITIONS = """\
PartitionName=main AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES \
QoS=N/A DefaultTime=01:00:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO \
MaxNodes=UNLIMITED MaxTime=1-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=n[1-3] \
PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=YES:4 OverTimeLimit=NONE \
PreemptMode=REQUEUE State=UP TotalCPUs=6 TotalNodes=3 SelectTypeParameters=NONE
PartitionName=gpu AllowGroups=ALL AllowAccounts=ml,vision AllowQos=ALL AllocNodes=ALL Default=NO \
QoS=N/A DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=2 \
MaxTime=08:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=n[1-2] PriorityJobFactor=1 \
PriorityTier=10 RootOnly=NO ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=REQUEUE \
State=UP TotalCPUs=4 TotalNodes=2 SelectTypeParameters=NONE JobDefaults=(null)
PartitionName=closed AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO \
QoS=N/A DefaultTime=NONE GraceTime=0 MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 Nodes=n3 \
PriorityTier=1 PreemptMode=REQUEUE State=DOWN TotalCPUs=2 TotalNodes=1
"""
CONFIG = """\
Configuration data as of 2026-11-22T13:45:29
AccountingStorageType   = accounting_storage/none
AuthInfo                = socket=/run/munge/munge.socket.2
ClusterName             = lab
KillWait                = 30 sec
PreemptMode             = REQUEUE
PreemptType             = preempt/partition_prio
SlurmctldParameters     = (null)
SLURM_VERSION           = 22.05.8
"""
ACCOUNTS = {"AccountingStorageType": "accounting_storage/slurmdbd", "ClusterName": "lab"}
MINE = "ml||normal,long\nvision|gpu|normal\n"


def make_asked(**fields: Any) -> SlurmRequest:
    slurm = fields.pop("slurm", {})
    job = JobSpec.model_validate({"name": "a", "command": ["-m", "x"], "slurm": slurm, **fields})
    return parse_request(job, plan_slurm(job, "/work"))


def read_nodes(*partitions: str, text: str = NODES) -> list[site.ClusterNode]:
    return [node for node in site.parse_nodes(text) if node.partition in (partitions or ("main",))]


def judge_nodes(text: str = NODES, partition: str = "main", **job: Any) -> dict[str, Finding]:
    found = doctor_fit.judge_nodes(read_nodes(partition, text=text), make_asked(**job))
    return {f"{finding.check} {finding.where}": finding for finding in found}


def judge_partition(name: str, **job: Any) -> list[Finding]:
    partitions = site.parse_partitions(PARTITIONS)
    return list(doctor_fit.judge_partition(name, partitions, make_asked(**job)))


# -- partitions -----------------------------------------------------------------------------------


def test_the_default_partition_is_named_with_its_limits() -> None:
    (finding,) = judge_partition("")
    assert finding.status is Status.OK
    assert finding.where == "main"
    assert "3 nodes, time limit 1-00:00:00" in finding.found
    assert "a start lasts 01:00:00" in finding.found


@pytest.mark.parametrize(
    ("name", "job", "found", "fix"),
    [
        ("nope", {}, "is not there", "--set slurm.partition=NAME, one of: main,gpu"),
        ("closed", {}, "is DOWN: jobs wait in it", "one of: main,gpu"),
        ("gpu", {"slurm": {"time": "2-0"}}, "limit is 08:00:00", "--set slurm.time=08:00:00"),
        ("gpu", {"nnodes": 5}, "at most 2 nodes for a job", "--nnodes 2, or --set slurm.kind=arr"),
        ("gpu", {"slurm": {"account": "physics"}}, "Accounts ml,vision", "slurm.account=ml"),
        ("main", {"stop_grace_s": 3600}, "the last 3630 s are for the checkpoint", "slurm.time"),
    ],
)
def test_what_a_partition_refuses_is_told(
    name: str, job: dict[str, Any], found: str, fix: str
) -> None:
    (finding,) = judge_partition(name, **job)
    assert finding.status is Status.FAILED
    assert found in finding.found
    assert fix in finding.fix


def test_elements_of_an_array_are_jobs_of_one_node() -> None:
    (finding,) = judge_partition("gpu", nnodes=5, slurm={"kind": "array"})
    assert finding.status is Status.OK


# -- nodes ----------------------------------------------------------------------------------------


def test_nodes_that_fit_are_counted_with_their_states() -> None:
    found = judge_nodes(nnodes=3)
    assert [(f.status, f.found) for f in found.values()] == [
        (Status.OK, "3 fit and take jobs (3 idle)")
    ]


def test_a_drained_node_is_told_with_what_it_says() -> None:
    text = NODES.replace("n2|vm|main*|idle", "n2|vm|main*|drained").replace(
        "ib|22.05.8|none", "ib|22.05.8|ECC errors on GPU 1 | see ticket"
    )
    found = judge_nodes(text, nnodes=3)
    assert found["nodes main"].status is Status.FAILED
    assert found["nodes main"].found == (
        "2 of 3 fitting nodes take jobs, and the job needs 3 (2 idle, 1 drained)"
    )
    drained = found["node n2"]
    assert drained.status is Status.WARNING
    assert drained.found == "drained: ECC errors on GPU 1 | see ticket"
    assert "scontrol update NodeName=n2 State=RESUME" in drained.fix


def test_a_drained_node_that_is_not_needed_fails_nothing() -> None:
    text = NODES.replace("n2|vm|main*|idle", "n2|vm|main*|draining")
    found = judge_nodes(text, nnodes="2:3")
    assert found["nodes main"].status is Status.OK
    assert found["node n2"].status is Status.WARNING


@pytest.mark.parametrize("state", ["down*", "inval", "unknown", "idle*", "drained*", "fail"])
def test_nodes_in_such_states_take_no_jobs(state: str) -> None:
    (node, *_) = read_nodes(text=NODES.replace("idle", state))
    assert not node.takes_jobs


@pytest.mark.parametrize("state", ["idle", "mixed", "allocated", "idle~", "mixed-", "completing"])
def test_nodes_in_such_states_take_jobs(state: str) -> None:
    (node, *_) = read_nodes(text=NODES.replace("idle", state))
    assert node.takes_jobs


@pytest.mark.parametrize(
    ("job", "lacks"),
    [
        ({"slurm": {"mem": "99G"}}, "3 with 4000 MB of memory"),
        ({"slurm": {"cpus_per_task": 64}}, "3 with 2 cores"),
        ({"slurm": {"constraint": "h100"}}, "3 with no feature h100"),
        ({"nnodes": 3, "slurm": {"constraint": "a100&ib"}}, "1 with no feature a100"),
    ],
)
def test_what_nodes_have_too_little_of_is_told(job: dict[str, Any], lacks: str) -> None:
    finding = judge_nodes(**job)["nodes main"]
    assert finding.status is Status.FAILED
    assert lacks in finding.found


def test_a_constraint_that_only_slurm_understands_is_left_to_it() -> None:
    assert judge_nodes(slurm={"constraint": "[rack1*2&rack2*2]"})["nodes main"].status is Status.OK


# -- GPUs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("(null)", ()),
        ("gpu:8", (("", 8),)),
        ("gpu:a100:2(S:0-1),nvme:1", (("a100", 2),)),
        ("gpu:a100:4,gpu:h100:4(IDX:0-3)", (("a100", 4), ("h100", 4))),
        ("shard:gpu:8", ()),
    ],
)
def test_gpus_of_a_node_are_read(text: str, gpus: tuple[tuple[str, int], ...]) -> None:
    assert site.parse_gpus(text) == gpus


@pytest.mark.parametrize(
    "slurm",
    [{"gpus_per_node": "h100:1"}, {"gpus_per_node": "4"}, {"gres": "gpu:a100:4"}],
)
def test_gpus_that_no_node_has_are_told_with_those_that_are_there(slurm: dict[str, str]) -> None:
    finding = judge_nodes(nnodes=2, slurm=slurm)["GPUs main"]
    assert finding.status is Status.FAILED
    assert "nodes: 2 with gpu:a100:2, 1 with none" in finding.found
    assert "--set slurm.gpus_per_node=a100:2" in finding.fix


def test_gpus_that_are_there_are_told() -> None:
    found = judge_nodes(nnodes=2, slurm={"gpus_per_node": "a100:2"})
    assert found["GPUs main"].status is Status.OK
    assert found["nodes main"].status is Status.OK


def test_a_job_without_gpus_on_nodes_that_have_some_is_a_warning() -> None:
    finding = judge_nodes(partition="gpu")["GPUs gpu"]
    assert finding.status is Status.WARNING
    assert finding.fix == "--set slurm.gpus_per_node=2"


# -- account, time to stop, versions --------------------------------------------------------------


def test_a_cluster_without_accounts_is_told_as_such() -> None:
    config = site.parse_config(CONFIG)
    assert doctor_judge.judge_account(config, "", make_asked()).status is Status.OK
    named = doctor_judge.judge_account(config, "", make_asked(slurm={"account": "ml"}))
    assert named.status is Status.WARNING


@pytest.mark.parametrize(
    ("slurm", "associations", "found", "fix"),
    [
        ({}, "", "you are in no account", "sacctmgr add user"),
        ({"account": "physics"}, MINE, "you are in ml, vision", "--set slurm.account=ml"),
        ({"account": "vision", "partition": "main"}, MINE, "partitions gpu", "partition=gpu"),
        ({"account": "ml", "qos": "urgent"}, MINE, "you may use long, normal", "slurm.qos=long"),
    ],
)
def test_an_account_that_is_not_the_users_is_told(
    slurm: dict[str, str], associations: str, found: str, fix: str
) -> None:
    finding = doctor_judge.judge_account(ACCOUNTS, associations, make_asked(slurm=slurm))
    assert finding.status is Status.FAILED
    assert found in finding.found
    assert fix in finding.fix


@pytest.mark.parametrize("slurm", [{}, {"account": "ml", "qos": "long"}, {"account": "vision"}])
def test_an_account_of_the_user_is_right(slurm: dict[str, str]) -> None:
    assert doctor_judge.judge_account(ACCOUNTS, MINE, make_asked(slurm=slurm)).status is Status.OK


def test_a_grace_that_slurm_itself_does_not_give_is_told() -> None:
    config, used = site.parse_config(CONFIG), [site.parse_partitions(PARTITIONS)["main"]]
    (fits,) = doctor_judge.judge_stop(config, used, make_asked(stop_grace_s=30))
    assert fits.status is Status.OK
    (short,) = doctor_judge.judge_stop(config, used, make_asked(stop_grace_s=120))
    assert short.status is Status.WARNING
    assert "KillWait is 30 s, preemption REQUEUE" in short.found
    assert "stop_grace_s=30" in short.fix
    with_grace = [{**used[0], "GraceTime": "120"}]
    (given,) = doctor_judge.judge_stop(config, with_grace, make_asked(stop_grace_s=120))
    assert given.status is Status.OK


def test_a_partition_that_cancels_preempted_jobs_is_told() -> None:
    config, used = site.parse_config(CONFIG), [{"PreemptMode": "CANCEL"}]
    *_, finding = doctor_judge.judge_stop(config, used, make_asked())
    assert finding.status is Status.WARNING
    assert "cancelled, not requeued" in finding.found


def test_a_client_that_is_newer_than_the_controller_is_told() -> None:
    config = site.parse_config(CONFIG)
    same = doctor_judge.judge_versions("slurm-wlm 22.05.8\n", config, read_nodes())
    assert same.status is Status.OK
    newer = doctor_judge.judge_versions("slurm 24.11.1\n", config, read_nodes())
    assert newer.status is Status.WARNING


# -- folder, start, test job ----------------------------------------------------------------------

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
36 22 0:31 / /home rw,relatime shared:18 - nfs4 filer:/export/home rw,vers=4.2
37 22 0:32 / /scratch rw - lustre 10.0.0.1@o2ib:/scratch rw
38 22 0:33 / /home/with\\040space rw - tmpfs tmpfs rw
39 22 0:34 / /fast rw - newfs pool rw
"""


@pytest.mark.parametrize(
    ("folder", "type_", "status"),
    [
        ("/home/me/runs", "nfs4", Status.OK),
        ("/scratch", "lustre", Status.OK),
        ("/homeless/runs", "ext4", Status.WARNING),
        ("/home/with space/runs", "tmpfs", Status.WARNING),
        ("/fast/runs", "newfs", Status.WARNING),
    ],
)
def test_a_folder_that_other_machines_may_not_see_is_told(
    folder: str, type_: str, status: Status
) -> None:
    system = site.parse_file_system(MOUNTS, folder)
    assert system.type == type_
    assert doctor_judge.judge_folder(folder, system, one_machine=False).status is status
    assert doctor_judge.judge_folder(folder, system, one_machine=True).status is Status.OK


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
def test_what_slurm_refuses_is_told_in_its_words_with_the_fix(words: str, fix: str) -> None:
    finding = doctor_judge.judge_submission(words, accepted=False, now=0)
    assert finding.status is Status.FAILED
    assert words.splitlines()[-1] in finding.found
    assert fix in finding.fix


def test_the_time_until_the_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "sbatch: Job 18 to start at 1970-01-01T05:00:00 using 3 processors on nodes n[1-3]"
    at = doctor_judge.datetime(1970, 1, 1, 5).timestamp()
    finding = doctor_judge.judge_submission(words, accepted=True, now=at - 3 * 3600)
    assert finding.status is Status.OK
    assert finding.found.startswith("in about 3 hours: Job 18 to start")


@pytest.mark.parametrize(
    ("at", "status"), [(99.0, Status.OK), (111.0, Status.OK), (60, Status.WARNING)]
)
def test_a_clock_is_compared_with_the_length_of_the_job(at: float, status: Status) -> None:
    assert doctor_judge.judge_clock("n1", at, 100.0, 110.0).status is status


def test_the_test_job_asks_for_what_the_job_asks_for() -> None:
    slurm = {"partition": "gpu", "gpus_per_node": "a100:8", "setup": ["module load cuda"]}
    slurm |= {"extra": ["--wckey=my project"]}
    job = JobSpec.model_validate({"name": "a", "command": ["-m", "x"], "slurm": slurm})
    lines = render_test_job(plan_slurm(job, "/work"), Path("/shared/my runs")).splitlines()
    assert lines[1:3] == ["#SBATCH --partition=gpu", "#SBATCH --gpus-per-node=a100:8"]
    assert lines[3] == "#SBATCH '--wckey=my project'"
    assert "cd '/shared/my runs' || exit 3" in lines
    assert lines.index("module load cuda") < next(i for i, x in enumerate(lines) if "probe" in x)


def wait_for_answer(folder: Path) -> float | None:
    job = JobSpec.model_validate({"name": "a", "command": ["-m", "x"]})
    return _TestJob(plan_slurm(job, "/work"), folder, 1.0)._wait_for(folder / ANSWER)


def test_an_answer_that_this_machine_sees_late_is_waited_for(tmp_path: Path) -> None:
    writer = threading.Timer(0.5, (tmp_path / ANSWER).touch)
    writer.start()
    waited_s = wait_for_answer(tmp_path)
    writer.join()
    assert waited_s is not None
    assert waited_s > 0.2


def test_an_answer_that_this_machine_never_sees_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_job, "NOTICED_WITHIN_S", 0.5)
    assert wait_for_answer(tmp_path) is None
