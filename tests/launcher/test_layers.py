"""The import rule: a module imports only from lower layers, and nothing heavy at the top."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAUNCHER = ROOT / "launcher"

AGENT = {
    f"agent.{name}"
    for name in (
        *("disk", "reserve", "streams"),
        *("processes", "heartbeat", "settings", "faults", "report", "scratch", "attempts", "gpu"),
        *(
            "node",
            "stopping",
            "identity",
            "worker",
            "guard",
            "preload",
            "watchdog",
            "health",
            "waking",
        ),
        *("admission", "link", "logs", "watched", "takeover", "launch", "engine", "supervisor"),
    )
}
ROSTER = {
    f"agent.roster.{name}"
    for name in (
        *("head", "watch", "words", "view", "decide", "machine"),
        *("settings", "fencing", "store", "exit_barrier", "parting", "shell", "handler", "backend"),
    )
}
HOST = {"host", "host.__main__"} | {
    f"host.{name}"
    for name in (
        "commands",
        "examine",
        "revive",
        "facts",
        "frames",
        "keeper",
        "leases",
        "processes",
        "requests",
        "watch",
    )
}
LAYERS: dict[float, set[str]] = {
    0: {"", "errors", "clock", "contract", "state", "node_plan", "key_errors"},
    # The agent in the node and the program on a host: beside the planning, never above it.
    0.5: {"agent", "agent.roster", "agent.__main__", *AGENT, *ROSTER, *HOST},
    1: {
        "job",
        "job_types",
        "job_values",
        "job_conflicts",
        "job_kubernetes",
        "storage",
        "pods",
        "ranks",
        "rendezvous",
        "facts",
        "devices",
        "repository",
        "hosts",
        "lines",
    },
    2: {"yaml_source", "yaml_loaders", "yaml_words", "manifest_source", "pytorchjob", "inventory"}
    | {"job_problems", "jobfile", "reference", "plan", "torchrun"}
    | {"agent_task", "agent_logs", "kubernetes_plan", "hosts_plan"},
    3: {
        "render",
        "render.shell",
        "render.local",
        "render.docker",
        "render.container",
        "render.agent_archive",
        "render.agent_files",
        "render.hosts",
        "render.pod",
        "render.gang",
        "render.job_spec",
        "render.pytorchjob",
        "render.trainjob",
        "render.jobset",
        "render.indexed_job",
        "manifests",
        "by_hand",
        "check",
        "checks",
        "play",
        "play_values",
        "pod_states",
        "pod_notes",
        "job_news",
    }
    | {f"checks.{name}" for name in ("rules", "fields", "pods", "pytorchjob", "trainjob", "gangs")},
    4: {
        "proc",
        "capacity",
        "targets.gpus",
        "targets.startable",
        "targets.docker_engine",
        "targets.docker_console",
        "targets.docker_play",
        "targets.kubernetes",
        "targets.kubernetes_api",
        "targets.kubernetes_by_hand",
        "targets.kubernetes_endings",
        "targets.kubernetes_news",
        "targets.kubernetes_trial",
        "targets.kubernetes_config",
        "targets.kubernetes_logs",
        "targets.kubernetes_output",
        "targets.kubernetes_watch",
        "runs",
        "tails",
    }
    | {"targets", "targets.base", "targets.local", "targets.docker", "targets.hosts"}
    | {
        f"targets.{name}"
        for name in (
            "ssh",
            "ssh_errors",
            "host_line",
            "host_late",
            "host_nodes",
            "host_facts",
            "host_reach",
            "host_images",
            "code",
        )
    },
    4.5: {"probes"}
    | {f"probes.{name}" for name in ("finding", "judge", "judge_hosts", "host_answers", "program")}
    | {"probes.judge_cluster", "probes.references"},
    5: {
        "follow_kubernetes",
        "doctor",
        "doctor_hosts",
        "doctor_kubernetes",
        "probe_run",
        "host_table",
        "adopting",
        "adopting_kubernetes",
        "story_kubernetes",
        "decide",
        "follow",
        "report",
        "summary",
        "choose",
        "console",
        "outlet",
        "launch",
        "listing",
        "listing_kubernetes",
    }
    | {
        "player",
        "signals",
        "stopping",
        "scaling",
        "joining",
        "node_outcomes",
        "timeline",
        "postmortem",
        "goodput",
        "plot",
    },
    6: {"cli", "__main__", "commands"}
    | {
        f"commands.{name}"
        for name in (
            *("arguments", "check", "cluster", "play", "doctor", "env", "hosts", "jobs"),
            *("runs", "schema", "parser", "typed"),
        )
    },
}
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names}


def modules() -> list[str]:
    found = []
    for path in LAUNCHER.rglob("*.py"):
        parts = path.relative_to(LAUNCHER).with_suffix("").parts
        found.append(".".join(part for part in parts if part != "__init__"))
    return sorted(found)


def path_of(module: str) -> Path:
    path = LAUNCHER.joinpath(*module.split(".")) if module else LAUNCHER
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports_of(module: str) -> set[str]:
    """Modules of ``launcher`` that one of them imports anywhere, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path_of(module).read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [n if _exists(n) else node.module for n in names]
        else:
            continue
        found |= {n.removeprefix("launcher").removeprefix(".") for n in names if _is_ours(n)}
    return found


def _is_ours(name: str) -> bool:
    return name == "launcher" or name.startswith("launcher.")


def _exists(name: str) -> bool:
    return _is_ours(name) and path_of(name.removeprefix("launcher").removeprefix(".")).exists()


@pytest.mark.parametrize("module", modules())
def test_every_module_has_a_layer_and_imports_only_from_lower_ones(module: str) -> None:
    assert module in LAYER_OF, "give the new module a layer here, as the design has it"
    same_or_lower = {n for n in imports_of(module) if LAYER_OF[n] <= LAYER_OF[module]}
    assert imports_of(module) == same_or_lower


def test_no_renderer_imports_the_one_of_another_target() -> None:
    shared = {"render.shell", "render.agent_files", "render.agent_archive"}
    shared |= {"render.container", "render.pod", "render.gang", "render.job_spec"}
    targets = {m for m in modules() if m.startswith("render.")} - shared
    assert targets
    for module in targets:
        assert not imports_of(module) & (targets - {module})


def test_no_target_imports_another() -> None:
    targets = {"targets.local", "targets.docker", "targets.hosts", "targets.kubernetes"}
    for module in targets:
        assert not imports_of(module) & (targets - {module})


def test_train_never_imports_launcher_nor_launcher_train() -> None:
    for folder, foreign in ((ROOT / "train", "launcher"), (LAUNCHER, "train")):
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not [n for n in names if n.split(".")[0] == foreign], path


def test_only_proc_uses_subprocess() -> None:
    # On a host there is no proc: the program there has one such module of its own.
    # The probe is no part of the launcher's process: it runs in the nodes, by itself.
    for module in set(modules()) - {"proc", "probes.program", "host.commands"}:
        assert "import subprocess" not in path_of(module).read_text(), module


def test_only_the_command_line_prints() -> None:
    for module in {m for m in modules() if LAYER_OF[m] < 6}:
        for node in ast.walk(ast.parse(path_of(module).read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            assert not (isinstance(called, ast.Name) and called.id == "print"), module


@pytest.mark.parametrize("heavy", ["torch", "docker", "kubernetes", "pydantic", "psutil"])
def test_importing_the_command_line_imports_nothing_heavy(heavy: str) -> None:
    code = f"import launcher.cli, sys; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("module", ["stopping", "listing", "follow", "targets.hosts"])
def test_what_acts_on_a_run_imports_no_job_file_reader(module: str) -> None:
    # It takes longer than all the rest of `launcher stop`, which never reads a job file.
    code = f"import launcher.{module}, sys; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_planning_and_rendering_for_docker_never_import_torch_or_docker() -> None:
    code = (
        "import launcher.jobfile, launcher.plan, launcher.render.docker, launcher.targets.docker,"
        " launcher.targets.local, sys; sys.exit(bool({'torch', 'docker'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_program_on_a_host_imports_the_standard_library_and_the_contract_alone() -> None:
    for module in sorted(HOST):
        assert {n for n in imports_of(module) if n.split(".")[0] != "host"} <= {"contract"}


AGENT = [module for module in modules() if module.split(".")[0] == "agent"]


@pytest.mark.parametrize("module", AGENT)
def test_the_agent_imports_the_standard_library_torch_and_l0_alone(module: str) -> None:
    ours = {name for name in imports_of(module) if name.split(".")[0] != "agent"}
    assert ours <= LAYERS[0]
    found = set()
    for node in ast.walk(ast.parse(path_of(module).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "the archive renames absolute imports"
            found.add(node.module or "")
    others = {name.split(".")[0] for name in found} - sys.stdlib_module_names
    assert others <= {"launcher", "torch"}


@pytest.mark.parametrize("module", ["supervisor", "guard", "worker", "preload", "engine", "health"])
def test_these_parts_of_the_agent_do_not_import_torch(module: str) -> None:
    code = f"import launcher.agent.{module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_files_and_functions_keep_to_their_budget() -> None:
    sizes = []
    for folder in ("launcher", "train", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            assert text.count("\n") <= 400, path
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef):
                    size = (node.end_lineno or node.lineno) - node.lineno + 1
                    assert size <= 60, f"{path}: {node.name}"
                    sizes.append(size)
    assert sorted(sizes)[len(sizes) // 2] <= 12
