"""A plan as the text of a manifest: its objects, the comment on top that says what it needs, and
what Pod Security forbids."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.agent_archive import read_agent_version
from launcher.targets.kubernetes.plan import PodSettings
from launcher.targets.kubernetes.render.code import (
    code_map_names,
    render_code_maps,
    tell_code,
)
from launcher.targets.kubernetes.render.kinds import RENDERERS
from launcher.targets.kubernetes.render.pod import (
    Object,
    has_own_agent,
    render_metadata,
    token_name,
)

if TYPE_CHECKING:
    from launcher.code.record import PackedCode

CONTROLLERS = {
    "pytorchjob": "Kubeflow's training operator (v1.9)",
    "trainjob": "Kubeflow Trainer (v2.3) with JobSet",
    "jobset": "JobSet (v0.12)",
    "job": "no operator; Kubernetes 1.31 or newer, for podFailurePolicy",
}
"""What each kind needs in the cluster."""
NUMBER = re.compile(
    r"[-+]?(0[xXoObB][0-9a-fA-F_]+|(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?)$"
)
"""Text that kubectl (YAML 1.1 by Go's rules) reads as a number; PyYAML does not know all of it."""
WIDTH = 88
"""Columns of a mapping or list that is written on one line."""


@dataclass(frozen=True, kw_only=True)
class RenderedManifest:
    """An ``Artifact``: objects in the order in which they are applied.

    ``opening`` is the manifest's first comment: what the objects need.
    """

    opening: tuple[str, ...]
    objects: tuple[Object, ...]
    namespace: str
    apply: str = "kubectl apply"

    def yaml(self) -> str:
        """The text of a file for ``kubectl apply``."""
        lines = "\n".join(self.opening).splitlines()
        comment = "".join(f"# {line}".rstrip() + "\n" for line in lines)
        return comment + "---\n".join(_dump(item) for item in self.objects)

    def shell(self, *, embed: bool = False) -> str:
        """A script that applies the manifest; the plan, not ``embed``, puts the agent into it."""
        return f"#!/bin/sh\n{self.apply} -n {self.namespace} -f - <<'EOF'\n{self.yaml()}EOF\n"


def render_manifest(
    plan: LaunchPlan,
    *,
    code: PackedCode | None = None,
    made_by: str = "launcher render",
    file: str = "FILE",
) -> RenderedManifest:
    """The plan's objects. ``made_by`` and ``file`` are for the opening comment.

    ``code`` is what the plan takes along. Raises ``InputError`` if it is missing or another one.
    """
    pods = PodSettings.of(plan)
    *others, job = RENDERERS[pods.kind](plan)
    if plan.code is not None:
        if code is None or code.hash != plan.code.hash:
            what = f"the code of {plan.run_id} is not in {plan.run_dir}"
            raise InputError(what, "run the script itself: that takes the code as it is now")
        others += render_code_maps(plan, render_metadata(plan), code)
    # A client-side apply keeps each object once more in an annotation, of 256 KiB at most.
    apply = "kubectl apply --server-side" if code else "kubectl apply"
    return RenderedManifest(
        opening=(
            *_opening(plan, made_by, f"{apply} -f {file}", code),
            *_tell_deleting(plan, file, [item["kind"] for item in others]),
        ),
        objects=(*others, job),
        namespace=pods.namespace or "default",
        apply=apply,
    )


def render_losses(plan: LaunchPlan) -> tuple[str, ...]:
    """Why Pod Security ``restricted`` does not admit the pods, in a line for each cause."""
    pods = PodSettings.of(plan)
    causes = {
        "the operator's init container of Master jobs": pods.has_master and len(plan.nodes) > 1,
        "kubernetes.host_network": pods.host_network,
        "resources.rdma, which needs the right to lock memory": pods.rdma_devices,
    }
    losses = (cause for cause, holds in causes.items() if holds)
    return tuple(f"not admissible under Pod Security restricted: {cause}" for cause in losses)


def _opening(plan: LaunchPlan, made_by: str, apply: str, code: PackedCode | None) -> list[str]:
    pods, nproc = PodSettings.of(plan), plan.nproc_per_node
    of_job = f"{f' -n {pods.namespace}' if pods.namespace else ''} -l launcher.job={plan.job_name}"
    return [
        f"{plan.job_name}: {pods.kind}, nnodes {plan.nnodes}, nproc_per_node {nproc}.",
        f"Made by: {made_by}",
        "Change the job file, not this one.",
        *(["", f"Code: {tell_code(code)}.", _tell_maps(plan)] if code else []),
        "",
        "Needs:",
        *(f"- {need}" for need in _needs(plan, pods)),
        *(line for note in _notes(plan, pods) for line in ("", f"Note: {note}.")),
        "",
        f"  {apply}",
        # Before its pods have started, kubectl finds nothing to follow, or refuses to.
        f"  until kubectl get pods{of_job} -o name | grep -q . && kubectl logs{of_job} -f --prefix "
        f"--max-log-requests {max(5, len(plan.nodes))}; do sleep 1; done",
    ]


def _tell_deleting(plan: LaunchPlan, file: str, others: Sequence[str]) -> tuple[str, ...]:
    """``others``: kinds of what the job does not own, as it is not there when they are applied."""
    pods, name = PodSettings.of(plan), plan.job_name
    where = f" -n {pods.namespace}" if pods.namespace else ""
    left = " and ".join(dict.fromkeys(others))
    return (
        "",
        f"To delete: kubectl delete{where} -f {file}, or launcher stop {name}{where}.",
        f"kubectl delete{where} {pods.kind} {name} leaves its {left}.",
    )


def _tell_maps(plan: LaunchPlan) -> str:
    first, *others = code_map_names(plan)
    return f"ConfigMaps: {first} to {others[-1]}." if others else f"ConfigMap: {first}."


def _needs(plan: LaunchPlan, pods: PodSettings) -> list[str]:
    secrets = ", ".join(plan.nodes[0].secrets)
    modes = "ReadWriteMany" if len(plan.nodes) > 1 else "ReadWriteOnce"
    agent = f"the node agent {read_agent_version()}"
    inside = f"Python and torch; {agent} is in the ConfigMap below"
    if has_own_agent(plan):
        inside = f"{agent}, which each pod checks (render --embed: in here instead)"
    return [
        CONTROLLERS[pods.kind],
        f"the image {plan.image}, which the nodes hold or can pull",
        f"in it {inside}",
        *(f"the PersistentVolumeClaim {name} ({modes})" for name in pods.claims),
        f"optional, before it: the Secret {token_name(plan)} with {protocol.TOKEN_FILE}, any text "
        "that only the nodes know; without it a NetworkPolicy has to keep others out",
        *([f"the Secret {pods.secret} with {secrets}"] if secrets else []),
    ]


def _notes(plan: LaunchPlan, pods: PodSettings) -> list[str]:
    notes = list(render_losses(plan))
    if pods.checkpoint is None:
        notes.append("checkpoints lie on each pod's own disk and are lost with it")
    return notes


def _fits(value: Object | list[Any]) -> bool:
    text = json.dumps(value)
    return len(text) <= WIDTH and "\\n" not in text


class _Dumper(yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper):  # type: ignore[misc]
    """Writes texts of several lines as blocks, what fits into ``WIDTH`` on one line, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_mapping(self, tag: str, mapping: Any, flow_style: Any = None) -> Any:
        short = not {"kind", "metadata", "spec"} & set(mapping) and _fits(mapping)
        return super().represent_mapping(tag, mapping, flow_style=short)

    def represent_sequence(self, tag: str, sequence: Any, flow_style: Any = None) -> Any:
        short = not any(isinstance(item, dict) for item in sequence) and _fits(sequence)
        return super().represent_sequence(tag, sequence, flow_style=short)

    def represent_text(self, value: str) -> Any:
        style = "|" if "\n" in value else None
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)
# A text that looks like a truth value or number gets quotes; real ones stay plain.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"[yYnN]$"), list("yYnN"))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, list("-+.0123456789"))


def _dump(item: Object) -> str:
    return str(
        yaml.dump(item, Dumper=_Dumper, sort_keys=False, width=10_000_000, allow_unicode=True)
    )
