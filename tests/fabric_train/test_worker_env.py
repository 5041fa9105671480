from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_train import worker_env
from fabric_train.errors import InputError
from fabric_train.worker_env import WorkerEnv, World, parse_worker_env
from launcher.contract import protocol

RANK_1_OF_4 = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
}
NAMES = """
RUN_DIR CHECKPOINT_DIR NODE_INDEX MAX_WORLD_SIZE RDZV_BACKEND RDZV_ENDPOINT PROGRESS
METRICS_FILE CHECKPOINTS_DIR GENERATION NODE_DIR INCARNATION NODE_ATTEMPT STOP_READY_FILE
STOP_REQUEST_FILE STOP_REASON_RESIZE STOP_ACK_FILE PROFILE_REQUEST LOOKS_DIR TRACE LEDGER_DIR
LEDGER_SCHEMA TRAIN_LEDGER
"""


def test_names_are_those_of_the_launchers_contract():
    for name in NAMES.split():
        assert getattr(worker_env, name) == getattr(protocol, name)


def test_the_training_never_imports_the_launcher():
    sources = Path(worker_env.__file__).parent.rglob("*.py")
    lines = [line.split() for source in sources for line in source.read_text().splitlines()]
    imported = [line[1] for line in lines if line[:1] in (["import"], ["from"])]
    assert imported
    assert not [name for name in imported if name.partition(".")[0] == "launcher"]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"MASTER_ADDR": "a", "MASTER_PORT": "1"},  # an address alone describes no worker
        {"RUN_DIR": "", "LAUNCHER_PROGRESS": " ", "RANK": ""},  # as if not set
    ],
)
def test_without_a_world_there_is_one_device_alone(environ):
    assert parse_worker_env(environ) == WorkerEnv()
    assert WorkerEnv().world_size == 1


def test_torchruns_variables_are_the_world():
    env = parse_worker_env({**RANK_1_OF_4, "TORCHELASTIC_RESTART_COUNT": "3"})
    assert env.world == World(
        rank=1,
        local_rank=1,
        world_size=4,
        local_world_size=2,
        master_addr="node-0",
        master_port=29500,
        restart_count=3,
    )
    assert env.world.num_nodes == 2


def test_the_launchers_variables_are_taken_over():
    env = parse_worker_env(
        {
            "RUN_DIR": "/run",
            "CHECKPOINT_DIR": "/checkpoints",
            "LAUNCHER_NODE_INDEX": "2",
            "LAUNCHER_RDZV_BACKEND": "c10d",
            "LAUNCHER_RDZV_ENDPOINT": "[fd00::1]:29400",
            "LAUNCHER_PROGRESS": "bar",
            "OMP_NUM_THREADS": "4",
        }
    )
    assert env == WorkerEnv(
        run_dir=Path("/run"),
        checkpoint_dir=Path("/checkpoints"),
        node_index=2,
        rdzv_backend="c10d",
        rdzv_endpoint="[fd00::1]:29400",
        progress="bar",
        omp_num_threads=4,
    )


@pytest.mark.parametrize("text", ["1", " 1\n", "1\x1f", "01"])
def test_white_space_around_a_number_does_not_matter(text):
    assert parse_worker_env({**RANK_1_OF_4, "RANK": text}).world.rank == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "4"}, "RANK=4 is not below WORLD_SIZE=4"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2 is not below LOCAL_WORLD_SIZE=2"),
        ({"LOCAL_WORLD_SIZE": "3"}, "WORLD_SIZE=4 is no multiple of LOCAL_WORLD_SIZE=3"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0'"),
        ({"RANK": "-1"}, "RANK='-1'"),
        ({"RANK": "1_0"}, "RANK='1_0'"),
        pytest.param({"RANK": "1" * 5000}, "RANK='1111", id="more digits than int() takes"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT='70000'"),
        ({"LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""}, "LOCAL_RANK, LOCAL_WORLD_SIZE missing"),
        ({"LAUNCHER_PROGRESS": "loud"}, "LAUNCHER_PROGRESS='loud' is not one of bar, lines"),
        ({"LAUNCHER_NODE_INDEX": "one"}, "LAUNCHER_NODE_INDEX='one'"),
        ({"OMP_NUM_THREADS": "0"}, "OMP_NUM_THREADS='0'"),
        ({"LT_DEVICES": "4", "LT_NUM_NODES": "2"}, "would follow LT_DEVICES, LT_NUM_NODES instead"),
    ],
)
def test_a_wrong_environment_is_refused_by_name_and_value(change, message):
    with pytest.raises(InputError) as refused:
        parse_worker_env({**RANK_1_OF_4, **change})
    assert message in str(refused.value)
    assert "fix: " in str(refused.value)


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(InputError) as refused:
        parse_worker_env({**RANK_1_OF_4, "RANK": "x", "MASTER_PORT": "y", "LT_DEVICES": "1"})
    for name in ("RANK='x'", "MASTER_PORT='y'", "LT_DEVICES"):
        assert name in str(refused.value)


@given(nodes=st.integers(1, 64), workers=st.integers(1, 16), data=st.data())
def test_every_world_that_torchrun_can_assign_is_accepted(nodes, workers, data):
    node = data.draw(st.integers(0, nodes - 1))
    local_rank = data.draw(st.integers(0, workers - 1))
    world = parse_worker_env(
        {
            **RANK_1_OF_4,
            "RANK": str(node * workers + local_rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(nodes * workers),
            "LOCAL_WORLD_SIZE": str(workers),
        }
    ).world
    assert (world.rank, world.num_nodes) == (node * workers + local_rank, nodes)


@given(st.dictionaries(st.sampled_from([*RANK_1_OF_4, "LAUNCHER_NODE_INDEX"]), st.text(max_size=6)))
def test_whatever_the_environment_says_it_is_parsed_or_refused(change):
    try:
        env = parse_worker_env({**RANK_1_OF_4, **change})
    except InputError:
        return
    assert env.world is None or 0 <= env.world.rank < env.world.world_size
