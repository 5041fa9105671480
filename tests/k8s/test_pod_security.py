"""Pod Security ``restricted``, as Kubernetes defines it, on every rendered pod."""

from collections.abc import Iterator
from typing import Any

import pytest

from launcher.targets.kubernetes.render.manifest import render_losses
from tests.k8s.manifests_table import KINDS, TABLE, manifest_of, plan_of, pod_specs

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"} | {
    *("persistentVolumeClaim", "projected", "secret")
}


def violations(pod: dict[str, Any]) -> Iterator[str]:
    """What ``restricted`` refuses: https://kubernetes.io/docs/concepts/security/pod-security-standards"""
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield field
    of_pod = pod.get("securityContext", {})
    for volume in pod.get("volumes", ()):
        if not {*volume} - {"name"} <= VOLUMES:
            yield f"volume {volume['name']}"
    for container in [*pod["containers"], *pod.get("initContainers", ())]:
        own = container.get("securityContext", {})
        merged = {**of_pod, **own}
        if own.get("privileged"):
            yield "privileged"
        if own.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        if merged.get("runAsNonRoot") is not True or merged.get("runAsUser") == 0:
            yield "runAsNonRoot"
        if merged.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield "seccompProfile"
        if "ALL" not in own.get("capabilities", {}).get("drop", ()):
            yield "capabilities.drop"
        if not {*own.get("capabilities", {}).get("add", ())} <= {"NET_BIND_SERVICE"}:
            yield "capabilities.add"
        if any(port.get("hostPort") for port in container.get("ports", ())):
            yield "hostPort"


def pods(name: str) -> list[dict[str, Any]]:
    found = pod_specs(list(manifest_of(**TABLE[name]).objects))
    assert found
    return found


@pytest.mark.parametrize("name", TABLE)
def test_every_pod_is_admissible_and_a_job_that_asks_for_nothing_loses_nothing(name):
    opts_in = name.endswith("everything")
    for pod in pods(name):
        assert bool([*violations(pod)]) == opts_in
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"] > 0
    losses = render_losses(plan_of(**TABLE[name]))
    # The operator's init container waits for the Master: it comes with Workers alone.
    has_init_container = "static" in name and name != "pytorchjob-static-alone"
    assert bool(losses) == (has_init_container or opts_in)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_job_opted_into_is_what_restricted_refuses_and_it_is_said(kind):
    name = f"{kind}-everything"
    assert {one for pod in pods(name) for one in violations(pod)} == {
        "hostNetwork",
        "capabilities.add",
    }
    said = "\n".join(manifest_of(**TABLE[name]).opening)
    assert said.count("not admissible under Pod Security restricted") == 2
