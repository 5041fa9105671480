"""Runs on a cluster that no launcher follows any more: looked at, followed, told the end of."""

from tests.launcher.targets.kubernetes.test_alone import scale_by_kubectl


def test_a_node_that_kubectl_scales_away_is_not_told_as_lost(server, start):
    run = start()
    for index in range(2):
        run.put(f"digits-{index}-a", index)
    run.said("digits-1-a runs")
    scale_by_kubectl(server, 1)
    asked = len(server.asked("GET", "/jobs/digits"))
    server.remove("pods", "digits-1-a")
    server.event("Job", "digits", "PyTorchJobRestarting", "Worker replica(s) failed")
    server.until(lambda: len(server.asked("GET", "/jobs/digits")) > asked + 5)
    assert "is lost" not in run.text
    assert "failed" not in run.text
    run.condition("Complete")
    assert run.end().replaced_nodes == 0
