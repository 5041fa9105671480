"""``launcher play`` in real containers: foreign manifests, restarts, losses, what is left."""

from __future__ import annotations

import json
import re

import pytest

from launcher.manifests.pytorchjob import PyTorchJob, operator_env
from launcher.manifests.source import parse_manifest
from tests.launcher.played import COUNTED, PRINT_ENV, elastic, job, nothing_is_left

pytestmark = pytest.mark.docker


@pytest.mark.parametrize(
    "make", [pytest.param(job, id="static"), pytest.param(elastic, id="elastic")]
)
def test_a_foreign_job_sees_the_environment_that_the_operator_would_give(make, play, engine):
    # The decisive pod waits for the others: they would be stopped before they have printed.
    names_resolve = (
        "import socket; names = ['foreign-worker-0', 'foreign-worker-1.default', "
        "'foreign-worker-1.default.svc.cluster.local']; "
        "print('found', len([socket.gethostbyname(name) for name in names]), flush=True)"
    )
    manifest = make(f"{PRINT_ENV}; import time; time.sleep(1); {names_resolve}; time.sleep(2)")
    played = play(manifest)
    assert played.end() == 0, played.text
    printed = dict(re.findall(r"^\[([a-z]+-\d)\] ENV (\{.*\})$", played.text, re.MULTILINE))
    read = PyTorchJob(item=parse_manifest(json.dumps(manifest), "job.yaml")[0])
    pods = [(replica, index) for replica in read.replicas for index in range(replica.pods)]
    names = [f"{replica.kind.lower()}-{index}" for replica, index in pods]
    assert set(printed) == set(names)
    assert played.text.count("found 3") == len(names), "by the names of their services"
    for (replica, index), pod in zip(pods, names, strict=True):
        env = json.loads(printed[pod])
        expected = {"MASTER_ADDR": "mine", "OWN": "x"} | dict(operator_env(read, replica, index))
        assert {name: env.get(name) for name in expected} == expected
        image_only = {"PYTHONUNBUFFERED"}
        ours = {n for n in env if n.startswith(("PET_", "MASTER_"))} | {"OWN"} | image_only
        assert ours == {n for n in expected if n not in ("RANK", "WORLD_SIZE")}
        assert env["HOSTNAME"] == f"foreign-{pod}"
    assert nothing_is_left(engine, played)


def test_a_failed_container_is_restarted_in_its_pod_with_what_the_pod_keeps(play, engine):
    program = COUNTED.replace("CODE", "1").replace("FAILURES", "2")
    played = play(elastic(program))
    assert played.end() == 0, played.text
    for n in (0, 1, 2):
        assert re.search(rf"^\[worker-\d\] start {n}$", played.text, re.MULTILINE), played.text
    assert "restarted in its pod (OnFailure)" in played.text
    assert "Succeeded: " in played.text
    assert "any one worker's success" in played.text
    assert nothing_is_left(engine, played)
