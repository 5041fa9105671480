"""Rules for pods, whatever makes them: env, secrets in clear, GPUs, shared memory, tolerations,
DNS.
"""

from __future__ import annotations

import re

from launcher.manifests.checks.rules import Breaches, Rule, hit
from launcher.manifests.source import EXTENDED_GPUS, SHM, Value, shm_volume

YAML_1_1_TRUTH = re.compile(r"(?i:y|yes|n|no|on|off)")
"""Words that YAML 1.1, which kubectl reads, takes as truth values."""
SECRET_NAME = re.compile(
    r"(?i)(^|_)(token|password|passwd|secret|api_?key|access_?key|credentials?)$"
)


def check_pod(pod: Value, *, training: bool = True) -> Breaches:
    """A pod's ``spec``; shared memory matters if the pod takes part in a ``training``."""
    if pod["hostNetwork"].data is True and pod["dnsPolicy"].text != "ClusterFirstWithHostNet":
        yield hit(
            Rule.HOST_NETWORK_DNS,
            pod["hostNetwork"],
            f"hostNetwork with dnsPolicy {pod['dnsPolicy'].text or 'ClusterFirst'}",
            "dnsPolicy: ClusterFirstWithHostNet",
        )
    for toleration in pod["tolerations"]:
        yield from _check_toleration(toleration)
    for kind in ("containers", "initContainers"):
        for container in pod[kind]:
            yield from check_env(container)
            yield from _check_gpus(container)
    for container in list(pod["containers"])[:1] if training else ():
        yield from _check_shm(pod, container)


def _check_toleration(toleration: Value) -> Breaches:
    key, operator, value = (toleration[name] for name in ("key", "operator", "value"))
    if operator.text == "Exists" and value.text:
        what = f"operator Exists with value {value.text}"
        yield hit(Rule.TOLERATION, operator, what, "operator: Equal, or no value")
    elif operator.text != "Exists" and not key.text:
        what = f"operator {operator.text or 'Equal (its default)'} without a key"
        yield hit(Rule.TOLERATION, toleration, what, "a key, or operator: Exists")


def check_env(container: Value) -> Breaches:
    """The variables of a container, or of whatever else has an ``env``."""
    for variable in container["env"]:
        value, name = variable["value"], variable["name"].text
        not_text = isinstance(value.data, bool | int | float)
        if not_text or (value and YAML_1_1_TRUTH.fullmatch(value.written)):
            quoted = f'value: "{value.written}"'
            yield hit(Rule.ENV_NOT_TEXT, value, f"{name}: {value.written} is no text", quoted)
        elif value.text and SECRET_NAME.search(name):
            fix = "valueFrom: {secretKeyRef: {name: ..., key: ...}}"
            yield hit(Rule.SECRET_IN_CLEAR, value, f"{name} is written in clear", fix)


def _check_gpus(container: Value) -> Breaches:
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    for gpu in EXTENDED_GPUS:
        request, limit = requests[gpu], limits[gpu]
        if request and request.text != limit.text:
            what = f"{request.text} {gpu} requested, limit {limit.text or 'none'}"
            yield hit(Rule.GPU_REQUESTS, request, what, f"limits: {{{gpu}: {request.text}}}")


def _check_shm(pod: Value, container: Value) -> Breaches:
    if (volume := shm_volume(pod, container)) is None:
        fix = f"mount an emptyDir with medium: Memory and a sizeLimit at {SHM}"
        yield hit(Rule.SHM_SMALL, container, f"nothing is mounted at {SHM}", fix)
        return
    empty_dir = volume["emptyDir"]
    if empty_dir["medium"].text != "Memory":
        return
    size, limit = empty_dir["sizeLimit"], container["resources"]["limits"]["memory"]
    if not size:
        fix = "sizeLimit: 1Gi"
        yield hit(Rule.SHM_UNBOUNDED, empty_dir, "a memory volume without sizeLimit", fix)
    elif (size.quantity or 0) >= (limit.quantity or float("inf")):
        what = f"sizeLimit {size.text} of {SHM}, memory limit {limit.text}"
        yield hit(Rule.SHM_OVER_MEMORY, size, what, "a memory limit above the sizeLimit")
