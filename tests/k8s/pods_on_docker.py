"""Rendered pods as containers of this machine, with what their controller injects.

What each controller injects is written down from its source (training operator v1.9.4, Trainer
v2.3.0, JobSet v0.12.0, Kubernetes 1.33), and wins over the manifest's own variables, as there.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker

from launcher.contract.protocol import TERMINATION_LOG
from launcher.job.spec import JobSpec
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.kubernetes.plan import PodSettings, plan_kubernetes
from launcher.targets.kubernetes.render.manifest import RenderedManifest, render_manifest
from tests.k8s.manifests_table import main_object, pod_specs

IMAGE = "fabric-train:cpu"
# The pod's address is known when it starts; exec keeps the agent the container's first process.
WITH_ADDRESS = ("sh", "-c", 'export POD_IP=$(hostname -i); exec "$@"', "pod")


def injected(kind: str, manifest: RenderedManifest, index: int) -> dict[str, str]:
    """What the container of one pod is told beside its manifest."""
    job = main_object(manifest)
    name, spec = job["metadata"]["name"], job["spec"]
    if kind in ("jobset", "job"):
        return {"JOB_COMPLETION_INDEX": str(index)}
    if kind == "trainjob":
        return {
            "JOB_COMPLETION_INDEX": str(index),
            "PET_NNODES": str(spec["trainer"]["numNodes"]),
            "PET_NPROC_PER_NODE": str(spec["trainer"]["numProcPerNode"]),
            "PET_NODE_RANK": str(index),
            "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
            "PET_MASTER_PORT": "29500",
        }
    told = {"PYTHONUNBUFFERED": "1", "PET_NPROC_PER_NODE": spec["nprocPerNode"]}
    replicas = spec["pytorchReplicaSpecs"]
    pods = sum(one["replicas"] for one in replicas.values())
    if "Master" in replicas:
        address = {"MASTER_ADDR": f"{name}-master-0", "MASTER_PORT": "23456"}
        told |= address | {f"PET_{key}": value for key, value in address.items()}
        told |= {"WORLD_SIZE": str(pods * int(spec["nprocPerNode"]))}
        told |= {"RANK": str(index), "PET_NODE_RANK": str(index), "PET_NNODES": str(pods)}
    if policy := spec.get("elasticPolicy"):
        told |= {
            "PET_NNODES": f"{policy['minReplicas']}:{policy['maxReplicas']}",
            "PET_RDZV_ENDPOINT": f"{name}-worker-0:{policy['rdzvPort']}",
            "PET_RDZV_BACKEND": policy["rdzvBackend"],
            "PET_RDZV_ID": policy["rdzvId"],
            "PET_MAX_RESTARTS": str(policy["maxRestarts"]),
        }
    return told


def pods_of(fields: dict[str, Any], folder: Path) -> Pods:
    """The pods of a job that is rendered as a manifest of no run."""
    job = JobSpec.model_validate({"name": "digits", "image": IMAGE, **fields})
    plan = plan_kubernetes(job, run_id="digits", run_root="runs", cwd=".")
    return Pods(plan, render_manifest(plan), folder)


class Pods:
    """A job's pods on a network of their own; ``close`` removes all of it."""

    def __init__(self, plan: LaunchPlan, manifest: RenderedManifest, folder: Path) -> None:
        self.kind = PodSettings.of(plan).kind
        self.plan, self.manifest, self.folder = plan, manifest, folder
        self.engine = docker.from_env()
        self.network = self.engine.networks.create(f"pods-{secrets.token_hex(4)}")
        self.containers: list[Any] = []
        self._write_config_map()

    def claim(self, name: str) -> Path:
        """The folder behind a PersistentVolumeClaim."""
        path = self.folder / "claims" / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
        return path

    def start(self, index: int, *, elsewhere: bool = False) -> Any:
        """The pod of one node, a new one each time; ``elsewhere``: not at a lost one's address."""
        if elsewhere:
            idle = self.engine.containers.create(
                IMAGE, entrypoint=["sleep", "infinity"], network=self.network.name
            )
            self.containers.append(idle)
            idle.start()
        pod = self._pod(index)
        own = self.folder / f"pod-{secrets.token_hex(4)}"
        own.mkdir(parents=True)
        (own / "termination-log").touch()
        (own / "termination-log").chmod(0o666)
        binds = self._binds(pod, own)
        user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
        for one in pod.get("initContainers", ()):
            volumes = binds(one)
            self.engine.containers.run(
                IMAGE, one["command"], entrypoint=[], user=user, volumes=volumes, remove=True,
                read_only=True, cap_drop=["ALL"],
            )  # fmt: skip
        if index and PodSettings.of(self.plan).has_master:
            # The operator's own, in Workers beside a Master.
            asks = f"until getent hosts {self.plan.nodes[0].name}; do sleep 0.2; done"
            self.engine.containers.run(
                IMAGE, ["-c", asks], entrypoint=["sh"], network=self.network.name, remove=True,
                mem_limit="20m",
            )  # fmt: skip
        container = pod["containers"][0]
        dns_name = self.plan.nodes[index].name
        host_name = dns_name.partition(".")[0]
        env = self._env(container, host_name) | injected(self.kind, self.manifest, index)
        made = self.engine.containers.create(
            IMAGE,
            entrypoint=[*WITH_ADDRESS, *container["command"]],
            hostname=host_name,
            environment=env,
            user=user,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            working_dir=container.get("workingDir"),
            volumes=[*binds(container), f"{own}/termination-log:{TERMINATION_LOG}"],
            shm_size=2**28,
            network=self.network.name,
            networking_config={
                self.network.name: docker.types.EndpointConfig("1.41", aliases=[dns_name])
            },
        )
        self.containers.append(made)
        made.start()
        return made

    def close(self) -> None:
        for container in self.containers:
            container.remove(force=True, v=True)
        self.network.remove()
        self.engine.close()

    def _pod(self, index: int) -> dict[str, Any]:
        found = pod_specs(main_object(self.manifest)) or pod_specs(list(self.manifest.objects))
        # With a Master, index 0 is its pod; all Workers have the second template.
        return found[min(index, len(found) - 1)]

    def _env(self, container: dict[str, Any], pod_name: str) -> dict[str, str]:
        env = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        return env | {"POD_NAME": pod_name}

    def _binds(self, pod: dict[str, Any], own: Path) -> Callable[[dict[str, Any]], Any]:
        """The mounts of each of a pod's containers; its own empty folders lie in ``own``."""
        claims = {
            one["name"]: one["persistentVolumeClaim"]["claimName"]
            for one in pod["volumes"]
            if "persistentVolumeClaim" in one
        }

        def of(container: dict[str, Any]) -> list[str]:
            binds = []
            for mount in container["volumeMounts"]:
                mode = "ro" if mount.get("readOnly") else "rw"
                if mount["name"] in ("plan", "code-parts"):
                    source = self.folder / "config-map" / mount.get("subPath", "")
                elif mount["name"] == "token":
                    # Optional: an empty folder, unless a test has put the Secret's file there.
                    source = self.folder / "secret"
                    source.mkdir(exist_ok=True)
                elif mount["name"] in claims:
                    source = self.claim(claims[mount["name"]]) / mount.get("subPath", "")
                elif mount["name"] != "shm":
                    source = own / mount["name"]
                    source.mkdir(parents=True, exist_ok=True)
                    source.chmod(0o777)
                else:
                    continue
                binds.append(f"{source}:{mount['mountPath']}:{mode}")
            return binds

        return of

    def _write_config_map(self) -> None:
        folder = self.folder / "config-map"
        folder.mkdir(parents=True)
        for one in self.manifest.objects:
            if one["kind"] == "ConfigMap":
                for name, text in one.get("data", {}).items():
                    (folder / name).write_text(text)
                for name, data in one.get("binaryData", {}).items():
                    (folder / name).write_bytes(base64.b64decode(data))
