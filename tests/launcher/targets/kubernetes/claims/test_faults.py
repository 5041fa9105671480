"""What real clusters do to a run, as its user sees it: endings, logs, events, starts that fail."""

from tests.launcher.cluster_run import started
from tests.launcher.targets.kubernetes.test_faults import OF_THE_HOST


def test_a_detached_run_tells_what_the_server_says_of_its_job_before_it_detaches(server, tmp_path):
    server.put("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}})
    server.warn_level = "restricted"
    # A process of its own: this one has the server's threads, which a fork would lose.
    process = started(tmp_path, OF_THE_HOST, "--detach")
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    told = 'launcher: would violate PodSecurity "restricted:latest": host namespaces'
    assert errors.count(told) == 1, errors
    assert "launcher: a pod would not be admitted now: " in errors
    assert errors.index(told) < errors.index("launcher: detached; see: ")
    server.delete("jobs", "digits")
    server.until(lambda: (tmp_path / "runs" / said.strip() / "outcome.json").is_file())
