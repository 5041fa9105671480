"""``k8s/monitoring``: alert rules, the dashboard, and a Prometheus that asks real agents."""

import json
import re
import subprocess
from typing import Any

import pytest
import yaml

from launcher.agent.engine.monitoring.health_server import Health, render_metrics
from launcher.contract.reports.vitals import TrainingVitals
from tests.launcher.runner import ROOT
from tests.launcher.vitals import GPU, vitals

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
    vitals=vitals(
        gpus=(GPU,),
        seconds={"productive": 5.0, "save stall": 1.0},
        training=TrainingVitals(step=1, loss=0.5, samples_per_s=2.0, saved_at=3.0),
    ),
)


def read_yaml(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


@pytest.mark.prometheus
def test_the_alerts_ring_when_they_should_and_only_then(tmp_path):
    (tmp_path / "groups.yaml").write_text(yaml.safe_dump(read_yaml("rules.yaml")["spec"]))
    tests = tmp_path / "rules_test.yaml"
    tests.write_text((FOLDER / tests.name).read_text())
    done = subprocess.run(
        ("promtool", "test", "rules", str(tests)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_rules_and_dashboard_ask_for_metrics_that_the_agents_have():
    exported = set(re.findall(r"^(launcher_\w+)", render_metrics(HEALTH), re.MULTILINE))
    assert len(exported) == 19
    text = (FOLDER / "rules.yaml").read_text() + (FOLDER / "dashboard.json").read_text()
    asked = set(re.findall(r"launcher_\w+", text)) - {"launcher_run_id"}
    assert asked <= exported
    json.loads((FOLDER / "dashboard.json").read_text())


def test_the_monitor_finds_the_pods_of_the_shipped_manifests():
    spec = read_yaml("podmonitor.yaml")["spec"]
    wanted, [endpoint] = spec["selector"]["matchLabels"], spec["podMetricsEndpoints"]
    for name in ("job.yaml", "job-static.yaml", "jobset.yaml"):
        text = (ROOT / "k8s" / name).read_text()
        for key, value in wanted.items():
            assert f"{key}: {value}" in text
        assert f"name: {endpoint['port']}, containerPort: 9400" in text
