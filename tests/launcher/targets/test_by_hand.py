"""``launcher env``: what a person evaluates before starting torchrun by hand."""

from __future__ import annotations

import os

import pytest

from launcher.contract.errors import InputError
from launcher.job.spec import JobSpec
from launcher.targets.by_hand import parse_endpoint, plan_by_hand, read_local_addr, render_by_hand
from tests.programs import run_program


def lines(
    job: JobSpec,
    node_rank: int = 0,
    endpoint: str | None = "10.0.0.5:29400",
    local_addr: str | None = "10.0.0.6",
) -> str:
    plan = plan_by_hand(
        job,
        endpoint=endpoint,
        node_rank=node_rank,
        local_addr=local_addr,
        run_root="/runs",
        cwd="/work space",
    )
    return render_by_hand(plan, node_rank)


def evaluated(text: str) -> dict[str, str]:
    argv = ["sh", "-c", f"{text}\nenv -0"]
    done = run_program(argv, env={"PATH": os.environ["PATH"]}, check=True)
    pairs = (entry.partition("=") for entry in done.stdout.split("\0") if entry)
    return {name: value for name, _, value in pairs}


def test_static_nodes_get_the_classic_variables_and_torchruns_own(make_job):
    env = evaluated(lines(make_job(nnodes=2, nproc_per_node=4), node_rank=1))
    classic = {n: env[n] for n in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK")}
    assert classic == {
        "MASTER_ADDR": "10.0.0.5",
        "MASTER_PORT": "29400",
        "WORLD_SIZE": "8",
        "NODE_RANK": "1",
    }
    assert (env["PET_NODE_RANK"], env["PET_LOCAL_ADDR"]) == ("1", "10.0.0.6")


def test_elastic_nodes_get_an_endpoint_and_the_same_id(make_job):
    job = make_job(nnodes="2:4", nproc_per_node=1)
    envs = [evaluated(lines(job, rank)) for rank in range(4)]
    assert {env["PET_RDZV_ID"] for env in envs} == {"digits"}
    assert {env["PET_RDZV_ENDPOINT"] for env in envs} == {"10.0.0.5:29400"}
    hosts = ["is_host=1" in env["PET_RDZV_CONF"] for env in envs]
    assert hosts == [True, False, False, False]
    assert not any("MASTER_ADDR" in env for env in envs)


def test_values_reach_the_shell_byte_for_byte(make_job):
    value = "a 'b' \"c\" $HOME `id`\nline"
    job = make_job(env={"AWKWARD": value})
    assert evaluated(lines(job, endpoint=None))["AWKWARD"] == value


def test_the_command_to_type_next_is_named(make_job):
    text = lines(make_job(command=["train.py", "--name", "a b"]), endpoint=None)
    assert text.splitlines()[-1].endswith("torchrun train.py --name 'a b'")


def test_what_cannot_meet_is_refused(make_job):
    with pytest.raises(InputError, match=r"no address was given.*\n.*--rdzv-endpoint"):
        lines(make_job(nnodes=2), endpoint=None)
    with pytest.raises(InputError, match="--node-rank 2, but nnodes is 2"):
        lines(make_job(nnodes=2), node_rank=2)
    with pytest.raises(InputError, match="port: 1234"):
        lines(make_job(nnodes=2, rdzv={"port": 1234}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu1", ("gpu1", None)),
        ("gpu1:29400", ("gpu1", 29400)),
        ("[fd00::1]:29400", ("fd00::1", 29400)),
        ("[fd00::1]", ("fd00::1", None)),
        ("fd00::1", ("fd00::1", None)),
    ],
)
def test_endpoints_are_read(text, expected):
    assert parse_endpoint(text) == expected


@pytest.mark.parametrize("text", ["", ":29400", "gpu1:port", "gpu1:70000", "[fd00::1", "[]:1"])
def test_anything_else_is_not_an_endpoint(text):
    with pytest.raises(InputError, match="is not HOST"):
        parse_endpoint(text)


def test_this_nodes_address_is_the_one_on_the_way_to_an_endpoint_that_can_be_resolved():
    assert read_local_addr("127.0.0.1") == "127.0.0.1"
    with pytest.raises(InputError, match="cannot be resolved"):
        read_local_addr("no-such-host.invalid")


def test_gloo_is_kept_to_loopback_only_where_all_nodes_are_on_this_machine(make_job):
    job = make_job(nnodes=2, nproc_per_node=1)
    assert "GLOO_SOCKET_IFNAME" not in evaluated(lines(job))
    here = evaluated(lines(job, 1, endpoint="127.0.0.1:29400", local_addr=None))
    assert here["GLOO_SOCKET_IFNAME"] == "lo"
