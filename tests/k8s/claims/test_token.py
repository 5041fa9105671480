"""Rendered pods in real containers, without the Secret that their manifest names."""

import pytest

from tests.k8s.pods_on_docker import pods_of
from tests.launcher.run_token import LOOKING

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]


def test_pods_meet_without_the_secret_that_their_manifest_names(tmp_path):
    fields = {
        "command": ["train.py"],
        "workdir": "/code",
        "nnodes": 2,
        "nproc_per_node": 1,
        "agent": {"in_image": False},
        "kubernetes": {
            "kind": "job",
            "checkpoint": "pvc/storage",
            "volumes": ["pvc/code:/code:ro"],
        },
    }
    pods = pods_of(fields, tmp_path)
    try:
        script = LOOKING.replace('Path(os.environ["RUN_DIR"], "token")', 'Path("/dev/null")')
        (pods.claim("code") / "train.py").write_text(script)
        made = [pods.start(index) for index in range(2)]
        told = [(one.wait(timeout=120)["StatusCode"], one.logs().decode()) for one in made]
    finally:
        pods.close()
    assert [code for code, _ in told] == [0, 0], told
    assert all("known True, none True" in text for _, text in told), told
