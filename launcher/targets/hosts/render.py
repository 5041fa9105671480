"""Renders a plan as what each host stores and runs; the target sends it as data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from launcher.contract import protocol
from launcher.contract.node_plan import NodePlan
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.agent_files import (
    MAKE_TOKEN,
    AgentFiles,
    TaskFile,
    env_of,
    render_agent_files,
    start_argv,
)
from launcher.targets.docker_options import (
    DOCKER_RUN_ATTACHED,
    Container,
    ContainerSettings,
    shared_options,
)
from launcher.targets.hosts.plan import run_dir_on
from launcher.targets.hosts.program.messages import KeeperSpec
from launcher.targets.hosts.settings import HostFacts, HostsSettings
from launcher.targets.subprocesses.shell import quote, render_block, render_line, render_start


@dataclass(frozen=True, kw_only=True)
class HostNode:
    """One node: what lies on its host, and what its keeper starts there.

    ``spec`` is without the secrets and the held node, which are added only at a start.
    """

    node: NodePlan
    host: HostFacts
    run_dir: str
    folders: tuple[str, ...]
    task: TaskFile | None
    spec: KeeperSpec


@dataclass(frozen=True, kw_only=True)
class HostsArtifact:
    """A plan as nodes on hosts. ``files`` are the agent's, if any."""

    plan: LaunchPlan
    files: AgentFiles | None
    nodes: tuple[HostNode, ...]

    def shell(self, *, embed: bool = False) -> str:
        """A script that starts the nodes, without leases; ``embed``: also without this project."""
        archive: list[str] = []
        if self.files and not embed:
            # Made on this machine, and copied to each host.
            folder = self.files.archive_path.rpartition("/")[0]
            archive = [f"mkdir -p {quote(folder)}", *self.files.shell_archive()]
        lines = [
            "#!/bin/bash",
            "# One agent per host over ssh; ends when all have ended.",
            *self._find_code(),
            *([f"TOKEN=$({MAKE_TOKEN})"] if self.files else []),
            "trap 'kill $(jobs -p)' EXIT",
            *archive,
            *(line for node in self.nodes for line in self._on_host(node, embed)),
            "code=0",
            "for pid in $pids; do wait $pid || code=$?; done",
            "trap - EXIT",
            "exit $code",
        ]
        return "\n".join(lines) + "\n"

    def _find_code(self) -> list[str]:
        if self.plan.code is None:
            return []
        make = render_line(("tar", "-czf", "code.tar.gz", "-C", self.plan.code.root, "."))
        missing = quote(f"set CODE=code.tar.gz, made with: {make}")
        return [
            '[ -n "$CODE" ] || CODE=' + quote(f"{self.plan.run_dir}/code.tar.gz"),
            f'[ -r "$CODE" ] || {{ echo {missing} >&2; exit 2; }}',
        ]

    def _on_host(self, node: HostNode, embed: bool) -> list[str]:
        ssh = self._ssh(node.host)
        secrets = f"; set there: {' '.join(node.node.secrets)}" if node.node.secrets else ""
        unpack = []
        if self.plan.code:
            code = quote(f"{node.run_dir}/{protocol.CODE_DIR}")
            command = f"mkdir -p {code} && tar -xz --no-same-owner -C {code}"
            unpack = [f'{ssh} {quote(command)} <"$CODE"']
        files = []
        if self.files and node.task:
            path = f"{node.run_dir}/{protocol.TOKEN_FILE}"
            agent = f"{node.run_dir}/{protocol.AGENT_ARCHIVE}"
            sent = replace(self.files, archive_path=agent, tasks=(node.task,))
            files = [*(sent.shell_archive(embed=True) if embed else ()), *sent.shell_tasks()]
            take = quote(f"mkdir -p {quote(node.run_dir)} && umask 077 && cat >{quote(path)}")
            unpack.append(f'printf %s "$TOKEN" | {ssh} {take}')
            if not embed:
                copy = f"mkdir -p {quote(node.run_dir)} && cat >{quote(agent)}"
                unpack.append(f"{ssh} {quote(copy)} <{quote(self.files.archive_path)}")
        return [
            "",
            f"# node {node.node.node_index}{secrets}",
            *unpack,
            *self._start(node, render_block(("mkdir", "-p", *node.folders), head=2), *files),
        ]

    def _start(self, node: HostNode, *before: str) -> list[str]:
        spec = node.spec
        # -tt: what runs there gets a hangup when this script ends.
        return [
            f"{self._ssh(node.host)} -tt sh -s <<'NODE' &",
            render_block(("unset", *spec.unset), per_line=4),
            *before,
            *render_start(spec.cwd, tuple(spec.env.items()), tuple(spec.argv)),
            "NODE",
            'pids="$pids $!"',
        ]

    def _ssh(self, host: HostFacts) -> str:
        config = HostsSettings.of(self.plan).ssh_config
        return render_line((*host.host.ssh(config), host.name))


def render_hosts(plan: LaunchPlan, only: tuple[int, ...] | None = None) -> HostsArtifact:
    """The plan's nodes (or ``only`` those) as processes of their hosts."""
    chosen = tuple(node for node in plan.nodes if only is None or node.node_index in only)
    files = render_agent_files(plan, chosen)
    texts = [task.text for task in files.tasks] if files else [None] * len(chosen)
    nodes = (_host_node(plan, *pair) for pair in zip(chosen, texts, strict=True))
    return HostsArtifact(plan=plan, files=files, nodes=tuple(nodes))


def _host_node(plan: LaunchPlan, node: NodePlan, task: str | None) -> HostNode:
    settings = HostsSettings.of(plan)
    host = settings.hosts[node.node_index]
    run_dir = run_dir_on(host, plan.run_id)
    node_dir = f"{run_dir}/{protocol.NODES_DIR}/{node.node_index}/{node.incarnation}"
    task_path = f"{node_dir}/{protocol.NODE_TASK_FILE}"
    inside = dict(node.env)[protocol.CHECKPOINT_DIR]
    checkpoint_dir = next((m.source for m in node.mounts if m.target == inside), inside)
    in_container, env = plan.image is not None, dict(env_of(plan, node))
    starts_container = in_container and not settings.hold
    if starts_container:
        containers = replace(settings.containers, user=host.user)
        argv, env = _docker_argv(plan, node, containers), {}
    else:
        argv = start_argv(plan, node, host.python, f"{run_dir}/{protocol.AGENT_ARCHIVE}")
    spec = KeeperSpec(
        run_id=plan.run_id,
        node_index=node.node_index,
        node_dir=node_dir,
        argv=argv,
        # The planner gives nodes without a container a folder.
        cwd="/" if in_container else node.workdir or "/",
        env=env,
        unset=() if in_container else protocol.STALE_VARIABLES,
        secrets={},
        container=node.name if starts_container else "",
        detached=plan.detached,
        stop_grace_s=plan.stop_grace_s,
        followed_s=settings.followed_s,
    )
    return HostNode(
        node=node,
        host=host,
        run_dir=run_dir,
        folders=(node_dir, checkpoint_dir),
        task=None if task is None else TaskFile(path=task_path, text=task),
        spec=spec,
    )


def _docker_argv(
    plan: LaunchPlan, node: NodePlan, containers: ContainerSettings
) -> tuple[str, ...]:
    """Runs a node's container in the foreground, on the host's network with its addresses."""
    shared = shared_options(plan, containers, "host")
    container = Container(plan=plan, node=node, shared=tuple(shared))
    options = (word for option in container.options for word in option.words)
    return (*DOCKER_RUN_ATTACHED, *options, container.image, *container.arguments)
