"""``k8s/monitoring``: alert rules, the dashboard, and a Prometheus that asks real agents."""

import json
import socket
import subprocess
import urllib.parse
import urllib.request

import pytest

from tests.launcher.runner import Runner
from tests.waiting import wait_until

STEPS = """
import time, torch
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
while True:
    optimizer.step()
    time.sleep(0.1)
"""


@pytest.mark.prometheus
def test_prometheus_scrapes_a_run(tmp_path):
    port, of_prometheus = free_port(), free_port()
    runner = Runner(tmp_path)
    job = f"name: tiny\nnproc_per_node: 1\nagent: {{health: {{port: {port}}}}}\n"
    runner.write(STEPS, job)
    assert runner("run", "job.yaml", "--on", "local", "--detach").returncode == 0
    config = tmp_path / "prometheus.yml"
    targets = [{"targets": [f"127.0.0.1:{port}"]}]
    scrape = {"job_name": "launcher", "scrape_interval": "1s", "static_configs": targets}
    config.write_text(json.dumps({"scrape_configs": [scrape]}))
    prometheus = subprocess.Popen(
        (
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{of_prometheus}",
        ),
        stderr=(tmp_path / "said").open("wb"),
    )

    def value(query: str) -> float:
        url = f"http://127.0.0.1:{of_prometheus}/api/v1/query?query={urllib.parse.quote(query)}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                found = json.load(answer)["data"]["result"]
        except OSError:
            return 0.0
        return float(found[0]["value"][1]) if found else 0.0

    try:
        wait_until(lambda: value("launcher_step") > 20, (tmp_path / "said").read_text)
        wait_until(lambda: value("launcher_node_memory_bytes") > 0)
        assert value("launcher_healthy") == 1
    finally:
        prometheus.kill()
        prometheus.wait()
        runner("stop", "--grace", "0")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
