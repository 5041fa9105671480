"""What is rendered for the node agent is all that it needs, in the script as in the run folder."""

import base64
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path

import pytest

from launcher.contract.errors import KeyInputError
from launcher.contract.node_plan import StoreEndpoint, parse_task
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets import agent_archive
from launcher.targets.agent_archive import (
    read_agent_sources,
    read_agent_version,
    render_agent_archive,
)
from launcher.targets.agent_files import (
    AgentFiles,
    choose_agent,
    is_own_image,
    render_agent_files,
    write_agent_files,
)
from launcher.targets.docker.render import render_docker
from launcher.targets.processes import render_processes
from tests.launcher.agent_sources import sources_in

ARCHIVE = re.compile(r"(base64 -d >[^\n]+ <<'END'\n)(.*?)\n(END\n)", re.DOTALL)


def files_of(plan: LaunchPlan) -> AgentFiles:
    files = render_agent_files(plan, plan.nodes)
    assert files is not None
    return files


def without_machine(script: str) -> str:
    """The script without the name of the interpreter that these tests run under."""
    return script.replace(shlex.quote(sys.executable), "/venv/bin/python")


def test_the_whole_local_script(make_plan, expect_golden):
    plan = make_plan(nnodes=2, nproc_per_node=1)
    expect_golden("local-agent-2x1.sh", without_machine(render_processes(plan).shell()))


def test_the_whole_docker_script(make_plan, docker_facts, expect_golden):
    plan = make_plan(docker_facts, nnodes="1:3", nproc_per_node=1, start="fork")
    expect_golden("docker-agent-1-3.sh", without_machine(render_docker(plan).shell()))


def test_the_script_for_an_image_that_holds_the_agent_names_no_archive(make_plan, docker_facts):
    plan = make_plan(replace(docker_facts, agent_in_image=True), nnodes="1:3")
    script = render_docker(plan).shell()
    assert "agent_archive" not in script
    assert "target=/launcher/agent.pyz" not in script
    assert script.count("/launcher/agent.pyz") == 3
    assert files_of(plan).archive is None


def test_an_embedded_script_holds_the_whole_archive(make_plan):
    script = render_processes(make_plan(nnodes="1:2")).shell(embed=True)
    found = ARCHIVE.search(script)
    assert base64.b64decode(found[2]) == render_agent_archive(read_agent_sources())
    assert sys.executable not in script


def test_the_line_of_the_script_writes_the_archive_of_this_version(make_plan, tmp_path):
    files = replace(files_of(make_plan(nnodes="1:2")), archive_path=str(tmp_path / "a'gent.pyz"))
    script = "\n".join(files.shell_archive())
    # From a folder whose own `launcher` must not be taken for this project's.
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher/__init__.py").write_text("raise SystemExit('not this one')")
    subprocess.run(["sh", "-euc", script], cwd=tmp_path, check=True, timeout=60)
    assert sources_in((tmp_path / "a'gent.pyz").read_bytes()) == sources_in(files.archive or b"")


def test_the_version_is_of_the_sources_wherever_the_archive_was_made():
    command = [sys.executable, "-m", "launcher.targets.agent_archive", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.strip() == read_agent_version()
    assert re.fullmatch("[0-9a-f]{12}", read_agent_version())


# -- images that hold an agent -------------------------------------------------------------------

OWN = read_agent_version()


@pytest.mark.parametrize(
    ("said", "held", "expected"),
    [
        (None, OWN, True),
        (True, OWN, True),
        (False, OWN, False),
        (None, None, False),
        (False, None, False),
        (False, "0123456789ab", False),
    ],
)
def test_the_image_s_agent_is_taken_where_it_is_the_launcher_s(make_job, said, held, expected):
    job = make_job(nnodes="1:2", agent={"in_image": said})
    assert choose_agent(job, "fabric-train:cpu", held) == (expected, "")


def test_an_image_with_another_agent_is_named_and_the_launcher_s_is_used(make_job):
    in_image, note = choose_agent(make_job(nnodes="1:2"), "fabric-train:cpu", "0123456789ab")
    assert not in_image
    for told in ("fabric-train:cpu", "0123456789ab", OWN, "make image"):
        assert told in note


def test_a_job_that_insists_on_an_image_s_agent_is_refused_another(make_job):
    job = make_job(nnodes="1:2", agent={"in_image": True})
    with pytest.raises(KeyInputError) as caught:
        choose_agent(job, "me/train:1", "0123456789ab")
    assert "me/train:1 holds agent 0123456789ab" in caught.value.what
    assert OWN in caught.value.what
    assert "make image" in caught.value.hint
    assert "agent.in_image=false" in caught.value.hint


def test_plain_torchrun_needs_no_agent_of_an_image(make_job):
    assert choose_agent(make_job(engine="torchrun"), "fabric-train:cpu", "0123456789ab") == (
        False,
        "",
    )


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("fabric-train:cpu", True),
        ("registry.example:5000/me/fabric-train", True),
        ("registry.example/me/fabric-train@sha256:00", True),
        ("registry.example/fabric-train/other:1", False),
        ("my-fabric-train:1", False),
        ("pytorch/pytorch:2.13.0", False),
    ],
)
def test_an_image_of_this_project_is_known_by_its_name(image, expected):
    assert is_own_image(image) == expected


def test_the_agent_reads_each_nodes_task_as_it_was_planned(make_plan):
    plan = make_plan(nnodes="1:3", env={"GREETING": "it's\n$5"}, start="fork")
    tasks = [parse_task(file.text) for file in files_of(plan).tasks]
    assert [task.node for task in tasks] == list(plan.nodes)
    assert {task.settings for task in tasks} == {plan.agent}


@pytest.mark.parametrize(("magic", "loaded"), [(MAGIC_NUMBER, ".pyc"), (b"any\n", ".py")])
def test_a_node_takes_the_bytecode_of_its_own_python_alone(tmp_path, monkeypatch, magic, loaded):
    monkeypatch.setattr("importlib.util.MAGIC_NUMBER", magic)
    archive = tmp_path / "agent.pyz"
    archive.write_bytes(render_agent_archive(read_agent_sources(), bytecode=True))
    code = "import _launcher_node.agent.worker.guard as guard; print(guard.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(archive)}, capture_output=True
    )
    assert done.stdout.decode().strip().endswith(f"guard{loaded}"), done.stderr


def test_the_compiled_archive_is_kept_and_made_anew_for_other_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    kept = Path(cache_from_source(f"{agent_archive.__file__[:-3]}_packed.py"))
    make = agent_archive.read_compiled_archive.__wrapped__
    assert sources_in(make()) == sources_in(make())  # its folder is not there
    kept.parent.mkdir(parents=True)
    made = make()
    assert make() == made
    assert kept.read_bytes() == made + agent_archive.read_agent_version().encode()
    monkeypatch.setattr(agent_archive, "read_agent_version", lambda: "another")
    kept.write_bytes(b"of yesterday")
    assert make() == made
    assert kept.read_bytes() == made + b"another"


def test_pythons_before_3_8_find_the_archive_too():
    # They look for the end of the directory at the end of the file.
    for made in (agent_archive.read_archive(), agent_archive.read_compiled_archive()):
        assert made[-22:].startswith(b"PK\5\6")


def test_running_agents_keep_their_archive_when_a_node_is_replaced(make_plan, tmp_path):
    plan = replace(make_plan(max_restarts=1), run_dir=str(tmp_path))
    files = files_of(plan)
    Path(files.tasks[0].path).parent.mkdir(parents=True)
    write_agent_files(files)
    write_agent_files(replace(files, read_archive=lambda: b"of another version"))
    assert (tmp_path / "agent.pyz").read_bytes() == files.archive


@pytest.mark.parametrize(
    ("fields", "limit_s"),
    [
        ({"max_restarts": 1}, 1800),
        ({}, 365 * 24 * 3600),
        ({"agent": {"hang_max_s": 600}}, 600),
        ({"agent": {"hang_min_s": 3600}}, 365 * 24 * 3600),
    ],
)
def test_without_restarts_nobody_who_computes_hangs_unless_the_job_says_when(
    make_plan, fields, limit_s
):
    agent = make_plan(**fields).agent
    assert agent.hang_max_s == limit_s


def stores(plan: LaunchPlan) -> tuple[StoreEndpoint, ...]:
    assert plan.agent is not None
    return plan.agent.stores


def test_three_containers_may_serve_the_store_each_at_the_same_port(make_plan, docker_facts):
    found = stores(make_plan(docker_facts, nnodes="2:4"))
    assert [(s.node_index, s.host, s.port) for s in found] == [
        (index, f"digits-0a1b2c-{index}", 29400) for index in range(3)
    ]


def test_processes_of_one_machine_serve_it_each_at_a_port_of_their_own(make_plan, local_facts):
    facts = replace(local_facts, ports=(21000, 22000, 23000))
    found = stores(make_plan(facts, nnodes="1:2"))
    assert [(s.node_index, s.port) for s in found] == [(0, 21000), (1, 22000)]


@pytest.mark.parametrize("fields", [{}, {"nnodes": 2, "rdzv": {"backend": "static"}}])
def test_a_lone_node_and_a_static_group_have_no_other_store(make_plan, fields):
    assert stores(make_plan(max_restarts=1, **fields)) == ()
