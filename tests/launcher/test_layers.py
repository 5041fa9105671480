"""The import rule: a module imports only from lower layers, and nothing heavy at the top."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.targets.agent_archive import HOST_NAMES

ROOT = Path(__file__).parents[2]
LAUNCHER = ROOT / "launcher"
ROOMS = (
    *("contract", "yamlfile", "agent", "job", "code", "plan", "runs", "verdict", "follow"),
    *("doctor", "targets", "manifests", "api", "screen", "commands"),
)
"""A module imports from its own room, or from rooms before it."""
OF_A_TARGET = ("local", "docker", "hosts", "kubernetes", "slurm", "starter")
NOT_A_TARGET = {
    # Sections and values of the job file.
    "job.file": {"docker", "kubernetes"},
    "job.conflicts": {"kubernetes"},
    "job.spec": {"docker", "kubernetes"},
    # Where agents learn which node they are.
    "agent.node.identity": {"slurm", "starter"},
    # A folder of the run.
    "agent.batch_job": {"slurm"},
    "targets.interpreter": {"local"},
    # Docker's command line, and its driver for logs.
    "targets.docker_options": {"docker", "local"},
    # An example in a hint.
    "commands.doctor": {"slurm"},
}
"""Words that are a target's name, and mean something else."""
BUILDS_IN_DOCKER = ("commands.build",)
"""``launcher build`` makes an image, for every target that takes one."""
HOST = "targets.hosts.program"
OF_HOSTS = {name.removesuffix(".py").replace("/", ".") for name in HOST_NAMES}
"""Modules that the hosts' archive has beside its program."""


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Parsed once for all tests here."""
    return tuple(ast.walk(ast.parse(path.read_text())))


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
    for node in nodes_of(path_of(module)):
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


def room_of(module: str) -> str:
    return module.partition(".")[0]


def target_of(module: str) -> str:
    """The target whose room a module is in; empty for what targets share, and for the others."""
    parts = module.split(".")
    return parts[1] if parts[0] == "targets" and parts[1:] and parts[1] in OF_A_TARGET else ""


def test_every_folder_is_a_room():
    folders = {path.parent.name for path in LAUNCHER.glob("*/__init__.py")}
    assert folders == set(ROOMS)
    assert {path.name for path in LAUNCHER.glob("*.py")} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_rooms_before_it(room):
    before = {"", *ROOMS[: ROOMS.index(room) + 1]}
    for module in (m for m in modules() if room_of(m) == room):
        assert {room_of(name) for name in imports_of(module)} <= before, module


def test_no_target_imports_another():
    for module in (m for m in modules() if room_of(m) == "targets"):
        others = {target_of(name) for name in imports_of(module)}
        assert others <= {"", target_of(module)}, module


def test_nothing_outside_of_its_room_names_a_target_but_the_one_table():
    elsewhere = [m for m in modules() if not target_of(m) and m != "api.choose_target"]
    for module in elsewhere:
        named = {word for word, line in words_of(module) if word in OF_A_TARGET}
        assert named <= NOT_A_TARGET.get(module, set()), module
        if module not in BUILDS_IN_DOCKER:
            assert not {target_of(name) for name in imports_of(module)} - {""}, module


def words_of(module: str) -> list[tuple[str, int]]:
    """Every string of a module that is a value, with its line."""
    nodes = nodes_of(path_of(module))
    return [
        (n.value, n.lineno)
        for n in nodes
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]


def test_only_its_room_asks_which_target_a_plan_is_for():
    for module in (m for m in modules() if not target_of(m)):
        for node in nodes_of(path_of(module)):
            if isinstance(node, ast.Compare):
                sides = (node.left, *node.comparators)
                asked = [s for s in sides if isinstance(s, ast.Attribute) and s.attr == "target"]
                assert not asked, f"{module}:{node.lineno}"


@pytest.mark.parametrize(
    ("folder", "foreign"),
    [
        ("fabric_train", {"launcher", "train"}),
        ("train", {"launcher"}),
        ("launcher", {"fabric_train", "train"}),
    ],
)
def test_a_package_never_imports_these_others(folder, foreign):
    for path in (ROOT / folder).rglob("*.py"):
        for node in nodes_of(path):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {n.split(".")[0] for n in names} & foreign, path


def test_only_these_modules_start_programs():
    started_by = ("short_command", "children", "conversation")
    here = {f"targets.subprocesses.{name}" for name in started_by}
    # git tells what the code of a job is, before any target is known.
    here.add("code.git")
    # In a host, in a node, and in an image that is built there is no launcher.
    elsewhere = {f"{HOST}.processes", "doctor.program", "targets.docker.in_image"}
    elsewhere |= {"agent.engine.monitoring.stacks", "agent.batch_job"}
    assert {m for m in modules() if _imports_subprocess(m)} == here | elsewhere


def _imports_subprocess(module: str) -> bool:
    nodes = nodes_of(path_of(module))
    plain = [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]
    return "subprocess" in [*plain, *(n.module for n in nodes if isinstance(n, ast.ImportFrom))]


def test_only_the_command_line_prints():
    # These run in nodes, on hosts and in images that are built.
    elsewhere = {m for m in modules() if room_of(m) == "agent" or m.startswith(HOST)}
    elsewhere |= {"doctor.program", "targets.docker.in_image", "targets.agent_archive"}
    here = {m for m in modules() if m and room_of(m) not in ("commands", "__main__")}
    for module in here - elsewhere:
        for node in nodes_of(path_of(module)):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            is_stream = called.startswith(("sys.stdout.", "sys.stderr."))
            assert called != "print", module
            assert not (is_stream and ".write" in called), module


JUDGES = {"agent.endings", "follow.endings"}
ENDS_ARE_PASSED_ON_IN = {
    "agent.engine.run": "nothing was begun",
    "agent.engine.torch_agent": "the judged ending becomes the node's outcome",
    "agent.node.supervisor": "the node cannot begin, or its agent has said nothing yet",
    "api.stopping": "a person has asked for it",
    "follow.loop": "a person has asked for it; the judged ending becomes the run's outcome",
}
"""Modules that give an end its cause without a judgement of their own."""


def test_only_two_modules_judge_why_anything_ended():
    makes = {m for m in modules() if any(_gives_a_cause(n) for n in nodes_of(path_of(m)))}
    assert makes == {*JUDGES, *ENDS_ARE_PASSED_ON_IN}


def _gives_a_cause(node: ast.AST) -> bool:
    """Whether it makes an ending of a run, a node or a worker, or changes the cause of one."""
    if not isinstance(node, ast.Call):
        return False
    called, given = _name_of(node.func), {keyword.arg for keyword in node.keywords}
    made = {called, *(_name_of(n) for n in node.args if called == "partial")}
    is_made = bool(made & {"Ending", "NodeOutcome", "Outcome", "WorkerEnd"})
    return is_made or (called == "replace" and "cause" in given)


def _name_of(node: ast.AST) -> str:
    return getattr(node, "id", "") or getattr(node, "attr", "")


@pytest.mark.parametrize("heavy", ["torch", "docker", "kubernetes", "pydantic", "psutil"])
def test_importing_the_command_line_imports_nothing_heavy(heavy):
    code = f"import launcher.commands.cli, sys; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    "module", ["api.stopping", "api.listing", "follow.loop", "targets.hosts.target"]
)
def test_what_acts_on_a_run_imports_no_job_file_reader(module):
    # It takes longer than all the rest of `launcher stop`, which never reads a job file.
    code = f"import launcher.{module}, sys; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_planning_and_rendering_for_docker_never_import_torch_or_docker():
    code = (
        "import launcher.job.file, launcher.plan.launch_plan, launcher.targets.docker.target,"
        " launcher.targets.local.target, sys;"
        " sys.exit(bool({'torch', 'docker'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_program_on_a_host_imports_the_standard_library_and_what_it_brings_alone():
    program = [m for m in modules() if m.startswith(HOST)]
    assert program
    for module in (*program, *sorted(OF_HOSTS & {*modules()})):
        others = {n for n in imports_of(module) if not n.startswith(HOST)}
        assert others <= OF_HOSTS, module


AGENT = [module for module in modules() if room_of(module) in ("agent", "contract")]


@pytest.mark.parametrize("module", AGENT)
def test_the_agent_imports_the_standard_library_torch_and_the_contract_alone(module):
    assert {room_of(name) for name in imports_of(module)} <= {"contract", "agent"}
    found = set()
    for node in nodes_of(path_of(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "the archive renames absolute imports"
            found.add(node.module or "")
    others = {name.split(".")[0] for name in found} - sys.stdlib_module_names
    assert others <= {"launcher", "torch"}


WITHOUT_TORCH = ("node.supervisor", "worker.guard", "worker.start")
WITHOUT_TORCH += ("engine.run", "engine.preload", "engine.monitoring.health_server")


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_these_parts_of_the_agent_do_not_import_torch(module):
    code = f"import launcher.agent.{module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_files_and_functions_keep_to_their_budget():
    sizes = []
    for folder in ("launcher", "fabric_train", "train", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            assert text.count("\n") <= 500, path
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef):
                    size = (node.end_lineno or node.lineno) - node.lineno + 1
                    assert size <= 60, f"{path}: {node.name}"
                    sizes.append(size)
    assert sorted(sizes)[len(sizes) // 2] <= 12
