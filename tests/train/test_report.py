import json
from pathlib import Path

import pytest

from fabric_train.worker_env import WorkerEnv, World
from train.config import TrainConfig
from train.metrics import write_metrics
from train.report import RankDevice, format_devices, format_hardware_table, format_rendezvous

WORLD = World(
    rank=0, local_rank=0, world_size=4, local_world_size=2, master_addr="node-0", master_port=41000
)


def gpu(host: str, index: int) -> RankDevice:
    return RankDevice(host=host, device=f"cuda:{index}", name="NVIDIA H200")


def test_the_table_shows_what_the_run_computes_on():
    table = format_hardware_table(
        TrainConfig(),
        WorkerEnv(world=WORLD, rdzv_backend="c10d", rdzv_endpoint="node-0:29400"),
        [gpu("node-0", 0), gpu("node-0", 1), gpu("node-1", 0), gpu("node-1", 1)],
        batch_size=96,
        virtual_shards=16,
        versions="2.13.0, CUDA 13.0, NCCL 2.28",
        checkpoint_dir=Path("/checkpoints"),
    )
    assert table == (
        "  accelerator   cuda\n"
        "  devices       ranks 0-1 on node-0: cuda:0, cuda:1 (NVIDIA H200)\n"
        "  devices       ranks 2-3 on node-1: cuda:0, cuda:1 (NVIDIA H200)\n"
        "  strategy      ddp over nccl\n"
        "  precision     32-true\n"
        "  world size    4\n"
        "  global batch  96 (16 virtual shards)\n"
        "  torch         2.13.0, CUDA 13.0, NCCL 2.28\n"
        "  rendezvous    c10d at node-0:29400, rank 0 at node-0:41000\n"
        "  checkpoints   /checkpoints"
    )


def test_a_lone_rank_has_a_line_of_its_own():
    assert format_devices([gpu("a", 0), gpu("b", 0)]) == [
        "rank 0 on a: cuda:0 (NVIDIA H200)",
        "rank 1 on b: cuda:0 (NVIDIA H200)",
    ]


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (WorkerEnv(), "none, one device without a launcher"),
        (WorkerEnv(world=WORLD), "backend not given, rank 0 at node-0:41000"),
    ],
)
def test_a_rendezvous_that_nobody_described_says_so(env, told):
    assert format_rendezvous(env) == told


def test_metrics_are_written_as_one_flat_object(tmp_path):
    write_metrics(tmp_path / "run", {"test_accuracy": 0.5, "checkpoint": "here"})
    written = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert written == {"test_accuracy": 0.5, "checkpoint": "here"}


def test_a_number_that_json_does_not_know_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_metrics(tmp_path, {"test_loss": float("nan")})
    assert list(tmp_path.iterdir()) == []
