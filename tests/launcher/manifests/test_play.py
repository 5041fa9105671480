"""What ``launcher play`` makes of a manifest: environment, volumes, restarts, the job's end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcher.contract.errors import InputError
from launcher.manifests.play import (
    Machine,
    Next,
    Play,
    PodState,
    decide_next,
    decide_outcome,
    plan_play,
)
from launcher.manifests.source import Together, parse_manifest
from launcher.targets.kubernetes.pod_states import Ending
from tests.launcher.cluster_run import agents_outcome

MACHINE = Machine(cpu_count=4, environ={"TOKEN": "from-here"})
JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: mnist, namespace: team}
spec:
  nprocPerNode: "2"
  runPolicy: {cleanPodPolicy: Running, backoffLimit: 4}
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: OnFailure
      template: &template
        metadata: {labels: {app: mnist}}
        spec:
          nodeSelector: {gpu: a100}
          terminationGracePeriodSeconds: 7
          securityContext: {runAsUser: 1000, runAsGroup: 1001}
          containers:
            - name: pytorch
              image: example/mnist:1
              command: [python, train.py]
              args: ["--rank=$(RANK)", "--price=$$(RANK)", "--of=$(NOBODY)"]
              workingDir: /code
              securityContext:
                allowPrivilegeEscalation: false
                readOnlyRootFilesystem: true
                capabilities: {drop: [ALL]}
              env:
                - {name: WORLD_SIZE, value: "77"}
                - {name: DATA, value: /data}
                - {name: FILES, value: "$(DATA)/files"}
                - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
                - {name: NS, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
                - {name: APP, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
                - {name: LR, valueFrom: {configMapKeyRef: {name: settings, key: lr}}}
                - {name: TOKEN, valueFrom: {secretKeyRef: {name: none, key: token}}}
                - {name: KEY, valueFrom: {secretKeyRef: {name: keys, key: key}}}
                - name: NOT
                  valueFrom: {secretKeyRef: {name: none, key: x, optional: true}}
              envFrom: [{prefix: S_, configMapRef: {name: settings}}]
              resources: {limits: {cpu: 500m, memory: 2Gi}}
              ports: [{name: pytorchjob-port, containerPort: 29500}]
              volumeMounts:
                - {name: shm, mountPath: /dev/shm}
                - {name: settings, mountPath: /etc/settings}
                - {name: settings, mountPath: /etc/one, subPath: lr}
                - {name: scratch, mountPath: /scratch}
                - {name: data, mountPath: /data, readOnly: true}
          volumes:
            - {name: shm, emptyDir: {medium: Memory, sizeLimit: 1Gi}}
            - {name: settings, configMap: {name: settings}}
            - {name: scratch, emptyDir: {}}
            - {name: data, persistentVolumeClaim: {claimName: data}}
    Worker:
      replicas: 2
      restartPolicy: ExitCode
      template: *template
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {lr: "0.1"}
binaryData: {blob: AAH/}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
data: {key: aGVsbG8=}
"""
ELASTIC = """
kind: PyTorchJob
metadata: {name: mnist}
spec:
  elasticPolicy:
    minReplicas: 1
    maxReplicas: 3
    maxRestarts: 5
    rdzvId: abc
    rdzvConf: [{key: timeout, value: "900"}, {key: last_call_timeout, value: "1"}]
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: pytorch, image: x}]}}
"""


def plan(text: str, machine: Machine = MACHINE) -> Play:
    objects = parse_manifest(text, "job.yaml")
    return plan_play(objects[0], Together(objects=objects), machine)


@pytest.fixture(scope="module")
def static() -> Play:
    return plan(JOB)


CONTAINERS = "          containers:\n            - name: pytorch\n"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (CONTAINERS, f"          initContainers: [{{name: fetch}}]\n{CONTAINERS}",
         "container fetch is not played"),
        (CONTAINERS, CONTAINERS.replace("- n", "- {name: proxy}\n            - n"),
         "container proxy is not played"),
        (CONTAINERS, f"          hostNetwork: true\n{CONTAINERS}", "hostNetwork is not played"),
        ("emptyDir: {}", "nfs: {path: /x}", "volume scratch is of kind nfs"),
        ("fieldRef: {fieldPath: metadata.name}", "resourceFieldRef: {resource: limits.memory}",
         "POD: resourceFieldRef is not played"),
    ],
)  # fmt: skip
def test_what_play_does_not_do_is_refused_by_name(old: str, new: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        plan(JOB.replace(old, new))


def test_pods_are_named_by_role_and_place_the_master_first(static: Play) -> None:
    assert [pod.name for pod in static.pods] == [
        "mnist-master-0",
        "mnist-worker-0",
        "mnist-worker-1",
    ]
    assert static.pods[1].aliases == (
        "mnist-worker-0",
        "mnist-worker-0.team",
        "mnist-worker-0.team.svc",
        "mnist-worker-0.team.svc.cluster.local",
    )


def test_a_static_job_gets_the_operators_variables_over_its_own(static: Play) -> None:
    env = dict(static.pods[2].env)
    expected = {
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": "mnist-master-0",
        "PET_MASTER_ADDR": "mnist-master-0",
        "MASTER_PORT": "29500",
        "PET_MASTER_PORT": "29500",
        "WORLD_SIZE": "6",
        "RANK": "2",
        "PET_NODE_RANK": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_NNODES": "3",
    }
    assert {name: env[name] for name in expected} == expected
    assert not [name for name in env if name.startswith("PET_RDZV")]


def test_an_elastic_job_gets_bounds_and_an_endpoint_and_no_rank() -> None:
    env = dict(plan(ELASTIC).pods[1].env)
    assert env == {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "auto",
        "PET_NNODES": "1:3",
        "PET_RDZV_ENDPOINT": "mnist-worker-0:23456",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ID": "abc",
        "PET_RDZV_CONF": "timeout=900,last_call_timeout=1",
        "PET_MAX_RESTARTS": "5",
    }


@pytest.mark.parametrize(
    ("old", "new", "name", "value"),
    [
        ("    rdzvId: abc\n", "    rdzvHost: etcd\n    rdzvPort: 2379\n", "PET_RDZV_ENDPOINT",
         "etcd:2379"),
        ("    rdzvId: abc\n", "    rdzvBackend: etcd-v2\n", "PET_RDZV_BACKEND", "etcd-v2"),
        ("    rdzvId: abc\n", "", "PET_RDZV_ID", None),
        ("    rdzvId: abc\n", "    standalone: true\n", "PET_STANDALONE", ""),
        ("    minReplicas: 1\n", "", "PET_NNODES", "3:3"),
        ("    rdzvId: abc\n", "    nProcPerNode: 4\n", "PET_NPROC_PER_NODE", "4"),
        ("{name: pytorch, image: x}",
         "{name: pytorch, image: x, ports: [{name: pytorchjob-port, containerPort: 4000}]}",
         "PET_RDZV_ENDPOINT", "mnist-worker-0:4000"),
    ],
)  # fmt: skip
def test_fields_of_the_elastic_policy_become_variables(
    old: str, new: str, name: str, value: str | None
) -> None:
    assert dict(plan(ELASTIC.replace(old, new)).pods[0].env).get(name) == value


@pytest.mark.parametrize(
    ("nproc", "world"),
    [
        *(('"4"', "12"), ("auto", "3"), ("gpu", "3")),
        # As Go's strconv.Atoi reads them; what it refuses counts as 1.
        *(('"+2"', "6"), ('"-1"', "-3"), ('"²"', "3"), ('""', "3")),
    ],
)
def test_world_size_counts_processes_only_where_their_number_is_given(
    nproc: str, world: str
) -> None:
    text = JOB.replace('nprocPerNode: "2"', f"nprocPerNode: {nproc}")
    env = dict(plan(text).pods[0].env)
    assert env["WORLD_SIZE"] == world
    assert env["PET_NPROC_PER_NODE"] == nproc.strip('"')


def test_processes_of_an_elastic_policy_do_not_count_in_the_world_size() -> None:
    policy = "  elasticPolicy: {minReplicas: 1, maxReplicas: 3, nProcPerNode: 4}\n"
    text = JOB.replace('  nprocPerNode: "2"\n', policy)
    env = dict(plan(text).pods[0].env)
    assert (env["WORLD_SIZE"], env["PET_NPROC_PER_NODE"]) == ("3", "4")


def test_values_come_from_where_the_manifest_says(static: Play) -> None:
    env = dict(static.pods[1].env)
    wanted = {
        "FILES": "/data/files",
        "POD": "mnist-worker-0",
        "NS": "team",
        "APP": "mnist",
        "LR": "0.1",
        "TOKEN": "from-here",
        "KEY": "hello",
        "S_lr": "0.1",
    }
    assert {name: env.get(name) for name in wanted} == wanted
    assert "NOT" not in env


def test_a_config_map_of_another_namespace_is_not_the_pods() -> None:
    other = "{name: settings, namespace: other}"
    text = JOB.replace("metadata: {name: settings}", f"metadata: {other}")
    with pytest.raises(InputError, match="ConfigMap settings of namespace team is not in these"):
        plan(text)
    own = "{name: settings, namespace: team}"
    text += f"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {own}\ndata: {{lr: '9'}}\n"
    assert dict(plan(text).pods[0].env)["LR"] == "9"


def test_values_of_secrets_are_not_shown(static: Play) -> None:
    assert "hello" not in repr(static)
    assert "from-here" not in repr(MACHINE)


def test_variables_in_the_command_are_expanded_as_by_the_kubelet(static: Play) -> None:
    assert static.pods[1].entrypoint == ("python", "train.py")
    assert static.pods[1].arguments == ("--rank=1", "--price=$(RANK)", "--of=$(NOBODY)")
    assert (plan(ELASTIC).pods[0].entrypoint, plan(ELASTIC).pods[0].arguments) == (None, None)


def test_a_pod_keeps_its_limits_and_its_security(static: Play) -> None:
    pod = static.pods[0]
    assert (pod.cpus, pod.memory_bytes, pod.shm_bytes) == (0.5, 2 * 2**30, 2**30)
    assert (pod.user, pod.cap_drop, pod.no_new_privileges) == ("1000:1001", ("ALL",), True)
    assert (pod.read_only, pod.grace_s, pod.workdir) == (True, 7, "/code")


def test_volumes_are_files_folders_of_the_pod_and_claims(static: Play) -> None:
    mounts = {mount.target: mount for mount in static.pods[0].mounts}
    assert set(mounts) == {"/etc/settings", "/etc/one", "/scratch", "/data"}
    files = {file.path: file.content for file in mounts["/etc/settings"].volume.files}
    assert files == {"lr": b"0.1", "blob": b"\x00\x01\xff"}
    assert (mounts["/etc/one"].sub_path, mounts["/etc/one"].read_only) == ("lr", True)
    assert (mounts["/data"].volume.claim, mounts["/data"].read_only) == ("data", True)
    assert not mounts["/scratch"].volume.claim


def test_gpus_are_shared_out_and_never_given_twice() -> None:
    text = JOB.replace("cpu: 500m", "nvidia.com/gpu: 2")
    pods = plan(text, replace(MACHINE, gpus=tuple("012345"))).pods
    assert [pod.device_ids for pod in pods] == [("0", "1"), ("2", "3"), ("4", "5")]
    assert "no GPUs here: containers start without them" in plan(text).notes


def test_what_counts_for_nothing_is_said(static: Play) -> None:
    assert static.notes == ("no effect here: nodeSelector",)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("name: settings, key: lr", "name: other, key: lr", "LR comes from ConfigMap other"),
        ("configMap: {name: settings}", "configMap: {name: other}",
         "other of namespace team is not"),
        ("configMapRef: {name: settings}", "configMapRef: {name: x}",
         "ConfigMap x of namespace team is not in these"),
        ("configMapRef: {name: settings}", "secretRef: {name: x}", "Secret x of namespace team is"),
        ("configMap: {name: settings}", "configMap: {name: settings, items: [{key: x, path: x}]}",
         "ConfigMap settings has no key x"),
        ("name: scratch, mountPath", "name: scrach, mountPath", "no volume 'scrach'"),
        ("name: pytorch\n", "name: torch\n", "no container pytorch"),
        ("  pytorchReplicaSpecs", "  replicaSpecs", "mnist has no replicas"),
    ],
)  # fmt: skip
def test_what_nothing_here_can_stand_for_is_refused(old: str, new: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        plan(JOB.replace(old, new))


@pytest.mark.parametrize(
    ("policy", "code", "following"),
    [
        ("Never", 0, Next.SUCCEEDED), ("Never", 1, Next.FAILED), ("Never", 137, Next.FAILED),
        ("OnFailure", 0, Next.SUCCEEDED), ("OnFailure", 1, Next.RESTART),
        ("OnFailure", 137, Next.RESTART), ("Always", 0, Next.RESTART), ("Always", 1, Next.RESTART),
        ("ExitCode", 0, Next.SUCCEEDED), ("ExitCode", 1, Next.FAILED),
        ("ExitCode", 127, Next.FAILED), ("ExitCode", 128, Next.RECREATE),
        ("ExitCode", 255, Next.RECREATE),
    ],
)  # fmt: skip
def test_the_restart_policy_says_what_comes_after_an_exit(
    policy: str, code: int, following: Next
) -> None:
    assert decide_next(policy, code) is following


def failed(code: int = 1, message: str = "", finished: str = "", word: str = "") -> PodState:
    ending = Ending(exit_code=code, word=word, message=message, started="", finished=finished)
    return PodState(ended=Next.FAILED, ending=ending)


DONE, FELL, RUNS = PodState(ended=Next.SUCCEEDED), failed(), PodState()


@pytest.mark.parametrize(
    ("kind", "states", "succeeded"),
    [
        ("static", (RUNS, DONE, DONE), None),
        ("static", (DONE, RUNS, RUNS), True),
        ("static", (RUNS, RUNS, FELL), False),
        ("elastic", (RUNS, DONE), True),
        ("elastic", (RUNS, RUNS), None),
        ("elastic", (FELL, RUNS), False),
        ("fixed", (DONE, RUNS), None),
        ("fixed", (DONE, DONE), True),
        ("fixed", (DONE, FELL), False),
    ],
)
def test_the_job_ends_by_the_operators_rules(
    kind: str, states: tuple[PodState, ...], succeeded: bool | None
) -> None:
    texts = {"static": JOB, "elastic": ELASTIC, "fixed": ELASTIC.replace("elasticPolicy", "x")}
    outcome = decide_outcome(plan(texts[kind]), states)
    assert (None if outcome is None else outcome.succeeded) is succeeded


@pytest.mark.parametrize(
    ("limit", "restarts", "ends"), [(None, 99, False), (4, 3, False), (4, 4, True), (0, 1, True)]
)
def test_restarts_of_all_pods_together_count_against_the_limit(
    static: Play, limit: Any, restarts: int, ends: bool
) -> None:
    states = (PodState(restarts=restarts - 1), PodState(restarts=1), PodState())
    outcome = decide_outcome(replace(static, backoff_limit=limit), states)
    assert (outcome is not None and not outcome.succeeded) is ends


@pytest.mark.parametrize(
    ("states", "why"),
    [
        # The agents' own words: the victim's container ended first.
        (
            (failed(message=agents_outcome(at=100.2, message="RuntimeError: of the victim")),
             failed(message=agents_outcome(at=100.1, message="ValueError: no data", rank=1))),
            "mnist-worker-1 ended with 1, which OnFailure does not restart: "
            "rank 1: ValueError: no data",
        ),
        # Foreign programs: by the times of the engine, which are of nanoseconds.
        (
            (failed(3, finished="2026-01-01T00:00:02.000000002Z"),
             failed(4, finished="2026-01-01T00:00:01.999999999Z", message="one\ntwo\n")),
            "mnist-worker-1 ended with 4, which OnFailure does not restart: two",
        ),
        # What was ended by a signal says less than a permanent cause.
        (
            (failed(137, finished="2026-01-01T00:00:01Z"), failed(1)),
            "mnist-worker-1 ended with 1, which OnFailure does not restart",
        ),
        (
            (failed(1), failed(137, word="OOMKilled")),
            "mnist-worker-1 ended with 137, SIGKILL (9), which OnFailure does not restart: "
            "OOMKilled; raise limits.memory; /dev/shm counts against it",
        ),
    ],
    ids=["agents", "times", "permanent", "memory"],
)  # fmt: skip
def test_the_headline_names_the_pod_that_failed_first(
    states: tuple[PodState, ...], why: str
) -> None:
    outcome = decide_outcome(plan(ELASTIC), states)
    assert outcome is not None
    assert outcome.why == why


def test_a_job_that_has_restarted_too_often_says_what_its_containers_ended_with() -> None:
    states = (replace(failed(3, "bad seed"), ended=None, restarts=4), RUNS)
    outcome = decide_outcome(replace(plan(ELASTIC), backoff_limit=4), states)
    assert outcome is not None
    assert outcome.why == (
        "4 restarts of containers, backoffLimit is 4; mnist-worker-0 ended with 3: bad seed"
    )
