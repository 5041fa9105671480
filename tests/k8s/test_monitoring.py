"""``k8s/monitoring``: alert rules, the dashboard, and a Prometheus that asks real agents."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.agent.engine.health_server import Health, render_metrics
from tests.launcher.runner import ROOT, Runner
from tests.waiting import wait_until

FOLDER = ROOT / "k8s/monitoring"
HEALTH = Health(
    healthy=True,
    phase="run",
    attempt=0,
    world_size=1,
    step=1,
    heartbeat_age_s=0.1,
    restarts={"exit": 1},
    phase_s={"run": 1.0},
    vitals={
        "cpu_share": 0.5,
        "memory_bytes": 1,
        "memory_limit_bytes": 2,
        "gpus": [
            {
                "name": "0",
                "share": 0.5,
                "memory_bytes": 1,
                "memory_limit_bytes": 2,
                "temperature_c": 60,
            }
        ],
        "seconds": {"productive": 5.0, "save stall": 1.0},
        "training": {"step": 1, "loss": 0.5, "samples_per_s": 2.0, "saved_at": 3.0},
    },
)
STEPS = """
import time, torch
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
while True:
    optimizer.step()
    time.sleep(0.1)
"""


def read_yaml(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


@pytest.mark.prometheus
def test_the_alerts_ring_when_they_should_and_only_then(tmp_path: Path) -> None:
    (tmp_path / "groups.yaml").write_text(yaml.safe_dump(read_yaml("rules.yaml")["spec"]))
    tests = tmp_path / "rules_test.yaml"
    tests.write_text((FOLDER / tests.name).read_text())
    done = subprocess.run(
        ("promtool", "test", "rules", str(tests)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_rules_and_dashboard_ask_for_metrics_that_the_agents_have() -> None:
    exported = set(re.findall(r"^(launcher_\w+)", render_metrics(HEALTH), re.MULTILINE))
    assert len(exported) == 19
    text = (FOLDER / "rules.yaml").read_text() + (FOLDER / "dashboard.json").read_text()
    asked = set(re.findall(r"launcher_\w+", text)) - {"launcher_run_id"}
    assert asked <= exported
    json.loads((FOLDER / "dashboard.json").read_text())


def test_the_monitor_finds_the_pods_of_the_shipped_manifests() -> None:
    spec = read_yaml("podmonitor.yaml")["spec"]
    wanted, [endpoint] = spec["selector"]["matchLabels"], spec["podMetricsEndpoints"]
    for name in ("job.yaml", "job-static.yaml", "jobset.yaml"):
        text = (ROOT / "k8s" / name).read_text()
        for key, value in wanted.items():
            assert f"{key}: {value}" in text
        assert f"name: {endpoint['port']}, containerPort: 9400" in text


@pytest.mark.prometheus
def test_prometheus_scrapes_a_run(tmp_path: Path) -> None:
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
