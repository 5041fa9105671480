"""``doctor``: real probes on real targets, and what follows from answers that tell of a fault."""

import json
import platform
import signal
from importlib.metadata import version
from typing import Any

import pytest

from launcher.agent.node.supervisor import SCRATCH_PREFIX
from launcher.contract.errors import ExitCode
from launcher.contract.records import parse_record
from launcher.doctor import program
from launcher.doctor.finding import Status, failed, is_fit, ok, render_findings, warning
from launcher.doctor.judge import (
    AllReduce,
    NodeAnswer,
    is_slow,
    judge_all_reduce,
    judge_machine,
    judge_nodes,
)
from launcher.doctor.program import parse_gpus, parse_xids
from launcher.doctor.run import MOUNTED_PROGRAM, OWN_FOLDER, ProbeAnswers, as_probe, judge_start
from tests.fabric_train.forked import run_forked
from tests.launcher.runner import PREFIX
from tests.waiting import wait_until

GOOD = {
    "python": "3.11.2",
    "torch": "2.13.0",
    "cuda": None,
    "nccl": "2.28.3",
    "shm_bytes": 2 << 30,
    "memlock_bytes": None,
    "checkpoint_free_bytes": 100 << 30,
    "checkpoint_error": "",
    "gpus": [],
    "xids": [],
    "infiniband": {},
    "verbs_devices": True,
    "verbs_library": True,
    "nccl_env": {},
}
GPU = {
    "index": "0",
    "bus_id": "00000000:3B:00.0",
    "name": "NVIDIA H200",
    "driver_version": "570.1",
    "memory_used": "1",
    "memory_total": "143771",
    "ecc_errors": "0",
}


def known(**facts: Any) -> NodeAnswer:
    """As the probe writes them, over JSON."""
    return parse_record(NodeAnswer, json.loads(json.dumps({**GOOD, **facts})))


def told(*nodes: dict[str, Any], good: bool = False) -> list[tuple[str, str, str, str]]:
    """The rows that are not ok, or all of them."""
    found = judge_nodes({f"node {i}": known(**facts) for i, facts in enumerate(nodes)})
    rows = [f for f in found if good or f.status is not Status.OK]
    assert all(f.fix for f in rows if f.status is not Status.OK)
    return [(f.status.value, f.check, f.where, f.found) for f in rows]


IB, FOLDER = {"mlx5_0": True}, "checkpoint folder"


@pytest.mark.parametrize(
    ("facts", "status", "check", "found"),
    [
        ({"shm_bytes": (1 << 30) - 1}, "warning", "/dev/shm", "1.0 GiB"),
        ({"checkpoint_free_bytes": (10 << 30) - 1}, "warning", "checkpoint folder",
         "10.0 GiB free"),
        ({"checkpoint_error": "No space"}, "failed", "checkpoint folder",
         "cannot be written: No space"),
        ({"cuda": "12.6"}, "failed", "same cuda", "has 12.6, others have None"),
        ({"torch": "2.12.0"}, "failed", "same torch", "has 2.12.0, others have 2.13.0"),
        ({"python": "3.12.1"}, "failed", "same python", "has 3.12.1, others have 3.11.2"),
        ({"nccl": None}, "failed", "same nccl", "has None, others have 2.28.3"),
        ({"infiniband": IB, "memlock_bytes": 65536}, "failed", "memlock", "64 KiB, with mlx5_0"),
    ],
)  # fmt: skip
def test_each_fault_of_a_node_is_named_with_its_place(facts, status, check, found):
    assert told({}, facts, {}) == [(status, check, "node 1", found)]


def test_what_is_enough_is_no_fault_and_is_told():
    assert told({"shm_bytes": None, "checkpoint_free_bytes": None}, good=True) == [
        ("ok", "python, torch", "node 0", "Python 3.11.2, torch 2.13.0, NCCL 2.28.3"),
        ("ok", "checkpoint folder", "node 0", "can be written"),
    ]
    least = {"shm_bytes": 1 << 30, "checkpoint_free_bytes": 10 << 30, "cuda": "12.6"}
    assert told({**least, "gpus": [GPU], "infiniband": IB}, good=True) == [
        ("ok", "python, torch", "node 0", "Python 3.11.2, torch 2.13.0, CUDA 12.6, NCCL 2.28.3"),
        ("ok", "checkpoint folder", "node 0", "can be written, 10.0 GiB free"),
        ("ok", "/dev/shm", "node 0", "1.0 GiB"),
        ("ok", "memlock", "node 0", "unlimited, for mlx5_0"),
        ("ok", "GPU", "node 0, GPU 0", "NVIDIA H200, driver 570.1, 1 of 143771 MiB used"),
        ("ok", "InfiniBand", "node 0", "mlx5_0"),
    ]
    assert told({"torch": None}) == [
        ("failed", "python, torch", "node 0", "Python 3.11.2 has no torch")
    ]


@pytest.mark.parametrize(
    ("gpu", "xids", "status"),
    [
        ({"ecc_errors": "1"}, [], "failed"),
        ({"ecc_errors": "[N/A]", "memory_used": "500"}, [], None),
        ({"memory_used": "501"}, [], "warning"),
        ({"memory_used": "[N/A]"}, [["0000:5e:00", 79]], None),
        ({}, [["0000:3b:00", 79]], "warning"),
        # A program's own mistakes.
        ({}, [["0000:3b:00", number] for number in (13, 31, 43, 45, 68, 69)], None),
        *(({}, [["0000:3b:00", number]], "warning") for number in (44, 46, 48, 63, 94, 95)),
    ],
)
def test_a_gpu_that_is_broken_or_in_use_is_named(gpu, xids, status):
    rows = told({"gpus": [{**GPU, **gpu}], "xids": xids})
    assert [row[:3] for row in rows] == ([(status, "GPU", "node 0, GPU 0")] if status else [])


def test_the_slowest_kind_of_gpu_is_a_warning_of_all_nodes():
    rows = told({"gpus": [GPU]}, {"gpus": [{**GPU, "name": "A100"}, GPU]}, {})
    kinds = "node 0: NVIDIA H200; node 1: A100, NVIDIA H200; node 2: none"
    assert rows == [("warning", "same GPUs", "all nodes", kinds)]


DMESG = """\
[    5.1] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20
[ 1029.4] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off
[ 1030.4] NVRM: Xid (PCI:0000:5e:00): 31, pid=3221, name=python, Ch 00000008, intr 00000000
[ 1031.4] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off
"""
NVIDIA_SMI = """\
0, NVIDIA H100 80GB HBM3, 570.133.20, 00000000:3B:00.0, 1, 81559, 0
1, NVIDIA H100 80GB HBM3, 570.133.20, 00000000:5E:00.0, 61022, 81559, [N/A]
"""


def test_what_nvidia_smi_and_the_kernel_say_is_read_and_put_together():
    gpus, xids = parse_gpus(NVIDIA_SMI), parse_xids(DMESG)
    assert xids == [("0000:3b:00", 79), ("0000:5e:00", 31)]
    node = known(gpus=gpus, xids=xids)
    first, second = judge_machine(node, "gpu1")
    assert (first.status, first.where) == (Status.WARNING, "gpu1, GPU 0")
    assert first.found.endswith("1 of 81559 MiB used, XID 79 in the kernel's log")
    # 31 is a program's own mistake, and no word of it is said.
    assert second.found.endswith("61022 of 81559 MiB used")
    assert (second.status, second.where) == (Status.WARNING, "gpu1, GPU 1")


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"infiniband": {"mlx5_0": False}}, "no port of mlx5_0 is active"),
        ({"verbs_devices": False}, "mlx5_0 without /dev/infiniband"),
        ({"verbs_library": False}, "mlx5_0 without libibverbs"),
        ({"nccl_env": {"NCCL_IB_DISABLE": "1"}}, "mlx5_0 not used: NCCL_IB_DISABLE=1"),
        ({"nccl_env": {"NCCL_NET": "Socket"}}, "mlx5_0 not used: NCCL_NET=Socket"),
    ],
)
def test_nccl_that_would_fall_back_to_sockets_is_warned_of(facts, found):
    node = known(**{"gpus": [GPU], "infiniband": {"mlx5_0": True}, **facts})
    _, row = judge_machine(node, "gpu1")
    assert (row.status, row.check) == (Status.WARNING, "InfiniBand")
    assert row.found == f"{found}, so that NCCL falls back to sockets"
    assert row.fix


@pytest.mark.parametrize(
    ("backend", "rates", "status", "found"),
    [
        ("gloo", [49e6], Status.WARNING, "gloo: 49 MB/s per node at 0.5 MB, 400 us for 500000 B"),
        ("gloo", [50e6], Status.OK, "gloo: 50 MB/s per node at 0.5 MB, 400 us for 500000 B"),
        ("nccl", [999e6], Status.WARNING, "nccl: 999 MB/s per node at 0.5 MB, 400 us for 500000 B"),
        ("nccl", [1e9], Status.OK, "nccl: 1000 MB/s per node at 0.5 MB, 400 us for 500000 B"),
        ("ucc", [1e6], Status.OK, "ucc: 1 MB/s per node at 0.5 MB, 400 us for 500000 B"),
        ("gloo", [0.0], Status.OK, "gloo: one worker, which sends nothing"),
        # Fast for small messages alone.
        ("gloo", [82e6, 10e6], Status.WARNING, "gloo: 10 MB/s per node at 1.0 MB, 400 us for 50"),
        ("gloo", [], Status.FAILED, "did not finish"),
    ],
)
def test_a_network_is_judged_by_its_largest_message_and_one_worker_alone_is_not(
    backend, rates, status, found
):
    told = [
        {"bytes": 500_000 * n, "took_s": 4e-4 * n, "bytes_per_s": rate}
        for n, rate in enumerate(rates, 1)
    ]
    measured = parse_record(AllReduce, {"backend": backend, "rates": told})
    row = judge_all_reduce(measured, "2 x 1")
    assert (row.status, row.where, row.found[: len(found)]) == (status, "2 x 1", found)
    assert is_slow(measured) is (status is not Status.OK)
    assert bool(row.fix) is is_slow(measured)
    assert is_slow(None)


def test_the_probe_of_two_workers_describes_their_node_and_measures_both(tmp_path):
    """In every worker of a node, as the agent starts it."""
    environ = {"RUN_DIR": str(tmp_path), "CHECKPOINT_DIR": str(tmp_path / "gone")}
    environ |= {"LAUNCHER_NODE_INDEX": "3", "CUDA_VISIBLE_DEVICES": ""}

    def probe() -> None:
        program.LARGEST_BYTES = 1 << 15
        program.main()

    run_forked(probe, 2, group=False, environ=environ)
    answers = {path.name: json.loads(path.read_text()) for path in (tmp_path / "doctor").iterdir()}
    assert set(answers) == {"node-3.json", "all-reduce.json"}
    node = parse_record(NodeAnswer, answers["node-3.json"])
    assert (node.python, node.gpus) == (platform.python_version(), ())
    assert (node.torch, node.checkpoint_error) == (version("torch"), "No such file or directory")
    measured = parse_record(AllReduce, answers["all-reduce.json"])
    assert [rate.bytes for rate in measured.rates] == [1 << 12, 1 << 15]
    for rate in measured.rates:
        assert rate.bytes_per_s == pytest.approx(rate.bytes / rate.took_s)


def test_the_table_puts_the_fix_beneath_its_row():
    table = render_findings([ok("a", "node 0", "x"), failed("b c", "here", "y", "do z")])
    assert table == "ok      a    node 0  x\nfailed  b c  here    y\n        fix: do z\n"
    assert is_fit([warning("a", "b", "c", "d")])
    assert not is_fit([failed("a", "b", "c", "d")])


def test_the_probe_is_the_job_but_for_its_command_and_its_checkpoint_folder(make_job):
    job = make_job(
        checkpoint_dir="/shared/ckpt", max_restarts=3, mounts=["./data:/data"], env={"A": "1"}
    )
    probe = as_probe(job, MOUNTED_PROGRAM, mounts_program=True)
    assert probe.command == (MOUNTED_PROGRAM,)
    assert [mount.target for mount in probe.mounts] == ["/data", MOUNTED_PROGRAM]
    assert probe.checkpoint_dir == f"/shared/ckpt/{OWN_FOLDER}"
    assert (probe.max_restarts, probe.env, probe.nnodes) == (0, job.env, job.nnodes)


@pytest.mark.parametrize(
    ("failure", "found"),
    [("", "no answer within 9 s"), ("No such file", "no answer before the run failed")],
)
def test_a_node_without_an_answer_is_told_with_how_long_it_had(failure, found):
    answers = ProbeAnswers(
        nodes={}, silent=["node 0"], all_reduce=None, failure=failure, world="1 x 1"
    )
    (row,) = judge_start(answers, 9)
    assert (row.check, row.where, row.found) == ("start", "node 0", found)


# -- on real targets -------------------------------------------------------------------------


def rows(text: str) -> dict[str, tuple[str, str]]:
    return {row["check"]: (row["status"], row["found"]) for row in json.loads(text)}


def test_a_folder_that_cannot_be_written_is_named(launcher):
    launcher.write("", PREFIX + "checkpoint_dir: /dev/null/saved\n")
    done = launcher("doctor", "job.yaml", "--on", "local")
    assert done.returncode == 1
    assert "the folder /dev/null/saved/.doctor cannot be made" in done.stdout
    assert "fix: " in done.stdout


def test_a_probe_that_takes_too_long_ends_at_its_limit(launcher):
    launcher.write("", PREFIX)
    done = launcher("doctor", "job.yaml", "--on", "local", "--limit", "0.1")
    assert done.returncode == 1
    assert "no answer within 0.1 s" in done.stdout


def test_an_interrupted_diagnosis_leaves_nothing_behind(launcher):
    launcher.write("", PREFIX + "checkpoint_dir: kept\n")
    launcher.env["TMPDIR"] = str(launcher.folder / "tmp")
    (launcher.folder / "tmp").mkdir()
    process = launcher.start("doctor", "job.yaml", "--on", "local")
    wait_until((launcher.folder / "kept" / OWN_FOLDER).exists)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    assert not (launcher.folder / "kept").exists()
    # An agent that is ended at once leaves its scratch folder to the next one.
    left = [path.name for path in (launcher.folder / "tmp").iterdir()]
    assert [name for name in left if not name.startswith(SCRATCH_PREFIX)] == []
