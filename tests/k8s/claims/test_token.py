"""Rendered pods in real containers, with and without the Secret that their manifest names."""

import re

import pytest

from tests.k8s.pods_on_docker import pods_of
from tests.launcher.run_token import LOOKING

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]


@pytest.mark.parametrize("token", ["s3cret-of-the-run\n", None], ids=["a Secret", "none"])
def test_pods_meet_by_the_secret_and_without_one_too(token, tmp_path):
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
        file = "/launcher/token/token" if token else "/dev/null"
        script = LOOKING.replace('Path(os.environ["RUN_DIR"], "token")', f"Path({file!r})")
        if token:
            (tmp_path / "secret").mkdir()
            (tmp_path / "secret/token").write_text(token)
        (pods.claim("code") / "train.py").write_text(script)
        made = [pods.start(index) for index in range(2)]
        told = [(one.wait(timeout=120)["StatusCode"], one.logs().decode()) for one in made]
    finally:
        pods.close()
    assert [code for code, _ in told] == [0, 0], told
    opens = "known True, none False, in []" if token else "known True, none True"
    assert all(re.search(re.escape(opens), text) for _, text in told), told
