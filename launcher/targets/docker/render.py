"""Renders a plan as containers of one Docker engine: one per node, on a network of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from launcher.contract import protocol
from launcher.contract.node_plan import Env
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.agent_files import AgentFiles, render_agent_files
from launcher.targets.docker_options import Container, ContainerSettings, run_labels, shared_options
from launcher.targets.subprocesses.shell import quote, render_block


@dataclass(frozen=True, kw_only=True)
class DockerArtifact:
    """A plan as a network and containers; ``labels`` are the network's.

    ``folders`` must exist before the containers, as folders that the engine creates are root's.
    ``agent`` are the files that the containers start from, if they need any.
    """

    run_id: str
    network: str
    labels: Env
    folders: tuple[str, ...]
    agent: AgentFiles | None
    containers: tuple[Container, ...]

    def network_kwargs(self) -> dict[str, Any]:
        """Arguments of the SDK's ``create_network``."""
        return {"name": self.network, "driver": "bridge", "labels": dict(self.labels)}

    def shell(self, *, embed: bool = False) -> str:
        """A script that does the same by hand; ``embed``: on a machine without this project too."""
        return "\n".join(
            [
                "#!/bin/sh",
                "# One container per node, on a network of their own. Ends when all have ended;",
                "# removes them and the network then, and on Ctrl-C.",
                "set -eu",
                *(
                    f': "${{{name}:?is a secret of the job: export it first}}"'
                    for name in sorted({n for c in self.containers for n in c.node.secrets})
                ),
                render_block(("mkdir", "-p", *self.folders), head=2),
                *(self.agent.shell(embed=embed) if self.agent else ()),
                "",
                "# Fails where the run is already there, before anything of it could be touched.",
                self._network(),
                "",
                *self._cleanup(),
                *(f"\n{container.shell()} >/dev/null" for container in self.containers),
                "",
                *self._wait(),
                "",
            ]
        )

    def _network(self) -> str:
        labels = (word for key, value in self.labels for word in ("--label", f"{key}={value}"))
        create = ("docker", "network", "create", "--driver", "bridge", *labels, self.network)
        return f"{render_block(create, head=5, per_line=2)} >/dev/null"

    def _cleanup(self) -> list[str]:
        label = quote(f"label={protocol.LABEL_RUN_ID}={self.run_id}")
        return [
            "finish() {",
            "  trap '' INT TERM HUP",
            f"  containers=$(docker ps --all --quiet --filter {label})",
            '  if [ -n "$containers" ]; then',
            "    docker stop $containers >/dev/null",
            "    docker rm --force --volumes $containers >/dev/null",
            "  fi",
            f"  docker network rm {quote(self.network)} >/dev/null",
            "}",
            "trap finish EXIT",
            "trap 'exit 130' INT",
            "trap 'exit 143' TERM HUP",
        ]

    def _wait(self) -> list[str]:
        names = " ".join(quote(container.name) for container in self.containers)
        return [
            "# Shows and keeps what the nodes print until they end.",
            *(
                f"docker logs --follow {quote(c.name)} 2>&1 | tee {quote(c.console)} &"
                for c in self.containers
            ),
            "wait",
            f"for code in $(docker wait {names}); do",
            '  [ "$code" -eq 0 ] || exit 1',
            "done",
        ]


def render_docker(plan: LaunchPlan, only: tuple[int, ...] | None = None) -> DockerArtifact:
    """The plan's nodes (or ``only`` those) as containers."""
    chosen = tuple(node for node in plan.nodes if only is None or node.node_index in only)
    shared = tuple(shared_options(plan, ContainerSettings.of(plan), plan.run_id))
    containers = tuple(Container(plan=plan, node=node, shared=shared) for node in chosen)
    return DockerArtifact(
        run_id=plan.run_id,
        network=plan.run_id,
        labels=run_labels(plan),
        folders=(plan.run_dir, plan.checkpoint_dir, *(c.folder for c in containers)),
        agent=render_agent_files(plan, chosen),
        containers=containers,
    )
