"""Whole manifests of a table of jobs, and the files of k8s/."""

from __future__ import annotations

import base64
import importlib.util
import os
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from launcher.agent.identity import identify
from launcher.contract.agent_settings import parse_task
from launcher.plan.launch_plan import parse_plan
from launcher.targets.agent_archive import read_agent_sources, render_agent_archive
from tests.k8s.manifests_table import TABLE, manifest_of, plan_of, without_archive

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden"

WHOLE = (
    *("pytorchjob-plain", "pytorchjob-elastic", "pytorchjob-static", "pytorchjob-everything"),
    *("pytorchjob-elastic-volcano", "trainjob-fixed", "trainjob-coscheduling", "jobset-fixed"),
    *("job-elastic", "job-elastic-kueue", "job-volcano", "job-ephemeral"),
)


@pytest.mark.parametrize("name", WHOLE)
def test_the_whole_manifest(name: str) -> None:
    text = without_archive(manifest_of(**TABLE[name]).yaml())
    path = GOLDEN / f"k8s-{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_the_same_job_gives_the_same_bytes() -> None:
    one, other = (manifest_of(**TABLE["job-elastic"]).yaml() for _ in range(2))
    assert one == other


@pytest.mark.parametrize("name", TABLE)
def test_the_text_is_the_objects_that_it_was_made_of(name: str) -> None:
    manifest = manifest_of(**TABLE[name])
    assert list(yaml.safe_load_all(manifest.yaml())) == list(manifest.objects)


@pytest.mark.parametrize("name", TABLE)
def test_a_plan_for_pods_is_read_back_equal(name: str) -> None:
    plan = plan_of(**TABLE[name])
    assert parse_plan(plan.to_json()) == plan


def test_the_config_map_holds_the_whole_archive_and_the_task_as_planned() -> None:
    plan = plan_of(**TABLE["pytorchjob-elastic"])
    config_map = manifest_of(**TABLE["pytorchjob-elastic"]).objects[0]
    archive = base64.b64decode(config_map["binaryData"]["agent.pyz"])
    assert archive == render_agent_archive(read_agent_sources())
    task = parse_task(config_map["data"]["node-plan.json"])
    assert (task.node, task.settings) == (plan.nodes[0], plan.agent)


def test_the_config_map_fits_what_kubernetes_and_kubectl_keep() -> None:
    config_map = manifest_of(**TABLE["pytorchjob-everything"]).objects[0]
    archive = base64.b64decode(config_map["binaryData"]["agent.pyz"])
    assert len(archive) + len(config_map["data"]["node-plan.json"]) < 2**20
    # A client-side apply keeps the whole object once more in an annotation, of 256 KiB at most.
    assert len(yaml.safe_dump(config_map)) < 240 * 2**10


def test_a_changed_task_is_another_config_map_so_that_running_pods_keep_theirs() -> None:
    first = manifest_of(**TABLE["job-fixed"]).objects[0]
    second = manifest_of(**{**TABLE["job-fixed"], "env": {"A": "1"}}).objects[0]
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert first["immutable"] is True


# -- k8s/ -------------------------------------------------------------------------------------


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("k8s_generate", ROOT / "k8s/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = generator()


@pytest.mark.parametrize("file", GENERATE.FILES)
def test_the_files_of_k8s_are_what_their_command_prints(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from launcher.commands.cli import run_command

    written = (ROOT / "k8s" / file).read_text()
    # Somebody may have written them for an image of their own.
    (image,) = re.findall(r"--image=(\S+)", written.partition("---")[0].partition("apiVersion")[0])
    assert written == GENERATE.render(file, image), "python k8s/generate.py"
    command = list(GENERATE.command_of(file, image))
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", ["launcher", *command])
    assert run_command(command) == 0
    printed = capsys.readouterr().out
    named = f"k8s/{file.removeprefix('base/')}"
    assert printed.replace("kubectl apply -f FILE", f"kubectl apply -f {named}") == written


YAML_FILES = sorted(path for path in (ROOT / "k8s").rglob("*.yaml") if not path.is_symlink())


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_file_opens_with_what_it_needs_and_two_commands(path: Path) -> None:
    lines = path.read_text().splitlines()
    opening = lines[: next(n for n, line in enumerate(lines) if line[:1] != "#")]
    assert any("Needs:" in line for line in opening)
    commands = [line for line in opening if re.match("#   (until )?kubectl ", line)]
    assert len(commands) == 2
    place = (
        path.relative_to(ROOT)
        if path.name != "kustomization.yaml"
        else path.parent.relative_to(ROOT)
    )
    assert str(place).replace("base/job.yaml", "job.yaml") in commands[0]


def test_the_file_that_people_apply_is_the_one_of_the_base() -> None:
    assert (ROOT / "k8s/job.yaml").resolve() == ROOT / "k8s/base/job.yaml"


@pytest.mark.kubectl
@pytest.mark.parametrize("folder", ["base", "overlays/gpu"])
def test_the_base_and_the_overlay_build(folder: str) -> None:
    objects = build(folder)
    kinds = {one["kind"] for one in objects}
    assert {"PyTorchJob", "ConfigMap", "PersistentVolumeClaim", "NetworkPolicy"} <= kinds
    assert {"Role", "RoleBinding", "ServiceAccount", "PodDisruptionBudget"} <= kinds


@pytest.mark.kubectl
def test_the_overlay_sets_namespace_image_and_gpus() -> None:
    objects = build("overlays/gpu")
    assert {one["metadata"]["namespace"] for one in objects} == {"training"}
    (job,) = [one for one in objects if one["kind"] == "PyTorchJob"]
    assert job["spec"]["nprocPerNode"] == "8"
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert container["image"].endswith(":1-cuda")
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    (binding,) = [one for one in objects if one["kind"] == "RoleBinding"]
    assert binding["subjects"][0]["namespace"] == "training"


@pytest.mark.kubectl
def test_the_workers_of_the_overlay_are_told_of_all_that_may_come() -> None:
    objects = build("overlays/gpu")
    (job,) = [one for one in objects if one["kind"] == "PyTorchJob"]
    (config,) = [one for one in objects if "node-plan.json" in (one.get("data") or {})]
    elastic = job["spec"]["elasticPolicy"]
    nodes = f"{elastic['minReplicas']}:{elastic['maxReplicas']}"
    told = {
        # As the operator injects them into each pod.
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": job["spec"]["nprocPerNode"],
        "POD_NAME": "digits-worker-1",
        "POD_IP": "10.1.1.7",
    }
    node = identify(parse_task(config["data"]["node-plan.json"]), told).node
    assert dict(node.env)["LAUNCHER_MAX_WORLD_SIZE"] == "16"


@pytest.mark.kubectl
@pytest.mark.parametrize("folder", ["base", "overlays/gpu"])
def test_what_is_built_passes_our_own_check(folder: str, tmp_path: Path) -> None:
    from launcher.commands.cli import run_command

    (tmp_path / "built.yaml").write_text(yaml.safe_dump_all(build(folder)))
    assert run_command(["check", str(tmp_path / "built.yaml")]) == 0


@pytest.mark.parametrize("file", GENERATE.FILES)
def test_each_manifest_passes_our_own_check(file: str) -> None:
    from launcher.commands.cli import run_command

    assert run_command(["check", str(ROOT / "k8s" / file)]) == 0


def build(folder: str) -> list[dict]:
    done = subprocess.run(
        ["kubectl", "kustomize", str(ROOT / "k8s" / folder)], capture_output=True, check=True
    )
    return list(yaml.safe_load_all(done.stdout))
