"""``doctor``: real probes on real targets, and what follows from answers that tell of a fault."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from launcher.agent.node.supervisor import SCRATCH_PREFIX
from launcher.contract.errors import ExitCode
from launcher.contract.records import parse_record
from launcher.doctor.finding import Status, failed, is_fit, ok, render_findings, warning
from launcher.doctor.judge import (
    AllReduce,
    NodeAnswer,
    judge_all_reduce,
    judge_machine,
    judge_nodes,
)
from launcher.doctor.program import parse_gpus, parse_xids
from launcher.doctor.run import MOUNTED_PROGRAM, OWN_FOLDER, as_probe
from launcher.job.spec import JobSpec
from tests.launcher.runner import PREFIX, Runner
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


def not_ok(*nodes: dict[str, Any]) -> list[tuple[str, str, str]]:
    found = judge_nodes({f"node {i}": known(**facts) for i, facts in enumerate(nodes)})
    return [(f.status.value, f.check, f.where) for f in found if f.status is not Status.OK]


@pytest.mark.parametrize(
    ("facts", "row"),
    [
        ({"gpus": [{**GPU, "name": "A100"}]}, ("warning", "same GPUs", "all nodes")),
        ({"shm_bytes": 64 << 20}, ("warning", "/dev/shm", "node 1")),
        ({"checkpoint_error": "Permission denied"}, ("failed", "checkpoint folder", "node 1")),
        ({"checkpoint_free_bytes": 1 << 30}, ("warning", "checkpoint folder", "node 1")),
        ({"cuda": "12.6"}, ("failed", "same cuda", "node 1")),
        ({"torch": "2.12.0"}, ("failed", "same torch", "node 1")),
        ({"python": "3.12.1"}, ("failed", "same python", "node 1")),
        ({"nccl": None}, ("failed", "same nccl", "node 1")),
        (
            {"infiniband": {"mlx5_0": True}, "memlock_bytes": 65536},
            ("failed", "memlock", "node 1"),
        ),
    ],
)
def test_each_fault_of_a_node_is_named_with_its_place(
    facts: dict[str, Any], row: tuple[str, str, str]
) -> None:
    assert not_ok({}, {}) == []
    assert not_ok({}, facts, {}) == [row]


def test_a_gpu_that_is_broken_is_named() -> None:
    assert not_ok({"gpus": [{**GPU, "ecc_errors": "3"}]}) == [("failed", "GPU", "node 0, GPU 0")]


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


def test_what_nvidia_smi_and_the_kernel_say_is_read_and_put_together() -> None:
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
def test_nccl_that_would_fall_back_to_sockets_is_warned_of(
    facts: dict[str, Any], found: str
) -> None:
    node = known(**{"gpus": [GPU], "infiniband": {"mlx5_0": True}, **facts})
    _, row = judge_machine(node, "gpu1")
    assert (row.status, row.check) == (Status.WARNING, "InfiniBand")
    assert row.found == f"{found}, so that NCCL falls back to sockets"
    assert row.fix


def test_a_slow_network_is_a_warning_and_one_worker_alone_is_none() -> None:
    rate = {"bytes": 1 << 24, "took_s": 1.0, "bytes_per_s": 1e6}
    slow = parse_record(AllReduce, {"backend": "gloo", "rates": [rate]})
    assert judge_all_reduce(slow, "2").status is Status.WARNING
    alone = parse_record(AllReduce, {"backend": "gloo", "rates": [{**rate, "bytes_per_s": 0.0}]})
    assert judge_all_reduce(alone, "1").status is Status.OK


def test_a_network_that_is_fast_for_small_messages_alone_is_slow() -> None:
    small = {"bytes": 1 << 15, "took_s": 4e-4, "bytes_per_s": 82e6}
    large = {"bytes": 1 << 24, "took_s": 1.7, "bytes_per_s": 10e6}
    found = judge_all_reduce(
        parse_record(AllReduce, {"backend": "gloo", "rates": [small, large]}), "2"
    )
    assert (found.status, found.found) == (
        Status.WARNING,
        "gloo: 10 MB/s per node at 16.8 MB, 400 us for 32768 B",
    )


def test_the_table_puts_the_fix_beneath_its_row() -> None:
    table = render_findings([ok("a", "node 0", "x"), failed("b c", "here", "y", "do z")])
    assert table == "ok      a    node 0  x\nfailed  b c  here    y\n        fix: do z\n"
    assert is_fit([warning("a", "b", "c", "d")])
    assert not is_fit([failed("a", "b", "c", "d")])


def test_the_probe_is_the_job_but_for_its_command_and_its_checkpoint_folder(
    make_job: Callable[..., JobSpec],
) -> None:
    job = make_job(
        checkpoint_dir="/shared/ckpt", max_restarts=3, mounts=["./data:/data"], env={"A": "1"}
    )
    probe = as_probe(job, MOUNTED_PROGRAM, mounts_program=True)
    assert probe.command == (MOUNTED_PROGRAM,)
    assert [mount.target for mount in probe.mounts] == ["/data", MOUNTED_PROGRAM]
    assert probe.checkpoint_dir == f"/shared/ckpt/{OWN_FOLDER}"
    assert (probe.max_restarts, probe.env, probe.nnodes) == (0, job.env, job.nnodes)


# -- on real targets -------------------------------------------------------------------------


def rows(text: str) -> dict[str, tuple[str, str]]:
    return {row["check"]: (row["status"], row["found"]) for row in json.loads(text)}


def test_a_folder_that_cannot_be_written_is_named(launcher: Runner) -> None:
    launcher.write("", PREFIX + "checkpoint_dir: /dev/null/saved\n")
    done = launcher("doctor", "job.yaml", "--on", "local")
    assert done.returncode == 1
    assert "the folder /dev/null/saved/.doctor cannot be made" in done.stdout
    assert "fix: " in done.stdout


def test_a_probe_that_takes_too_long_ends_at_its_limit(launcher: Runner) -> None:
    launcher.write("", PREFIX)
    done = launcher("doctor", "job.yaml", "--on", "local", "--limit", "0.1")
    assert done.returncode == 1
    assert "no answer within 0.1 s" in done.stdout


def test_an_interrupted_diagnosis_leaves_nothing_behind(launcher: Runner) -> None:
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
