"""Which cluster and namespace a command goes to: contexts, options and a pod's own account."""

import threading

import pytest

from tests.launcher.fake_cluster import pod
from tests.launcher.targets.kubernetes.test_place import (
    launcher,
    rights_asked,
    rights_granted,
    run_id,
)


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob", "jobset", "job"])
def test_the_role_that_is_shipped_grants_every_call_of_a_run(kind, server, launcher):
    nodes = ["--nnodes", "2"] if kind in ("jobset", "trainjob") else []
    words = ["run", "job.yaml", "--on", "kubernetes", "--kind", kind, *nodes]
    code, said = launcher(*words, "--detach")
    assert code == 0, said
    run_id = said.split()[-1]

    def collect() -> None:
        server.until(lambda: (f"{kind}s", "digits") not in server.objects)
        server.remove("pods", "digits-0")

    pod_labels = {"launcher.run-id": run_id, "batch.kubernetes.io/job-completion-index": "0"}
    server.put("pods", pod("digits-0", pod_labels))
    server.log("digits-0", ("2026-01-01T00:00:01Z", "[0/0] up"))
    server.until(lambda: server.asked("GET", "/log"))
    assert launcher("status", run_id)[0] == 0
    assert launcher("ps", "--on", "kubernetes")[0] == 0
    if kind in ("pytorchjob", "job"):
        assert launcher("scale", run_id, "1")[0] == 0
    server.log("digits-0", ended=True)
    gone = threading.Thread(target=collect, daemon=True)
    gone.start()
    assert launcher("stop", run_id)[0] == 0
    asked = rights_asked(server)
    assert asked - rights_granted() == set()
    assert ("", "pods/log", "get") in asked
