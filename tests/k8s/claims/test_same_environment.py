"""Pods of each kind give their workers what the contract of all targets lists."""

import contextlib

import pytest

from tests.k8s.pods_on_docker import pods_of
from tests.launcher.run_token import LOOKING
from tests.launcher.targets.contract.contract import GIVEN, given_in
from tests.launcher.targets.contract.environment import check_environment

pytestmark = pytest.mark.docker
STATIC = {"rdzv": {"backend": "static"}}
OF_STATIC = {
    **dict.fromkeys(("LAUNCHER_AGENT_SOCKET", "LAUNCHER_GENERATION", "LAUNCHER_JOINS")),
    "LAUNCHER_RDZV_BACKEND": "static",
    "MASTER_ADDR": "digits-master-0",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


@pytest.mark.parametrize(
    ("kind", "first", "more", "own"),
    [
        ("pytorchjob", "digits-worker-0", {}, {}),
        ("trainjob", "digits-node-0-0.digits", {}, {}),
        ("jobset", "digits-node-0-0.digits", {}, {}),
        ("pytorchjob", "digits-master-0", STATIC, OF_STATIC),
    ],
    ids=["pytorchjob", "trainjob", "jobset", "static"],
)
def test_a_worker_in_a_pod_has_the_environment_of_all_targets(kind, first, more, own, tmp_path):
    fields = {
        "command": ["train.py", "--lr", "0.2"],
        "nnodes": 2,
        "nproc_per_node": 1,
        "stop_grace_s": 5,
        "workdir": "/code",
        "kubernetes": {
            "kind": kind,
            "checkpoint": "ephemeral",
            "volumes": ["pvc/code:/code:ro"],
        },
        **more,
    }
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/token").write_text("s3cret-of-the-run\n")
    pods = pods_of(fields, tmp_path)
    with contextlib.closing(pods):
        # A static group has no coordinator to knock at.
        script = GIVEN.replace(LOOKING, "import json, os") if more else GIVEN
        (pods.claim("code") / "train.py").write_text(script)
        (pods.claim("code") / "helper.py").write_text('NAME = "here"\n')
        made = [pods.start(index) for index in range(2)]
        codes = [one.wait(timeout=120)["StatusCode"] for one in made]
        said = "".join(one.logs().decode() for one in made)
    assert codes == [0, 0], said
    own = {"LAUNCHER_RDZV_ENDPOINT": f"{first}:[1-9]*", **own}
    for rank, found in enumerate(given_in(said)):
        assert (found["code"], found["argv"]) == ("here", ["--lr", "0.2"])
        check_environment("kubernetes", "digits", rank, found["env"], own)
