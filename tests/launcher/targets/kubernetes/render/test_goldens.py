"""Whole manifests of a table of jobs, and the files of k8s/."""

import base64
import importlib.util
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from launcher.agent.node.identity import identify
from launcher.commands.cli import run_command
from launcher.contract.node_plan import parse_task
from launcher.plan.launch_plan import parse_plan
from launcher.targets.agent_archive import (
    read_agent_sources,
    read_agent_version,
    render_agent_archive,
)
from launcher.targets.kubernetes.plan import parse_kept_plan
from launcher.targets.kubernetes.render.manifest import RenderedManifest
from tests.k8s.manifests_table import (
    TABLE,
    main_object,
    manifest_of,
    plan_of,
    pod_specs,
    without_archive,
)

ROOT = Path(__file__).parents[5]
GOLDEN = ROOT / "tests/golden"
WHOLE = (
    *("pytorchjob-plain", "pytorchjob-elastic", "pytorchjob-static", "pytorchjob-everything"),
    *("pytorchjob-elastic-volcano", "trainjob-fixed", "trainjob-volcano", "jobset-fixed"),
    *("pytorchjob-code", "job-code"),
    *("job-elastic", "job-kueue", "job-volcano", "job-ephemeral"),
)


@pytest.mark.parametrize("name", WHOLE)
def test_the_whole_manifest(name):
    text = without_archive(manifest_of(**TABLE[name]).yaml())
    path = GOLDEN / f"k8s-{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", TABLE)
def test_the_opening_says_what_a_deleted_job_leaves(name):
    manifest = manifest_of(**TABLE[name])
    *others, _ = manifest.objects
    left = manifest.opening[-1].partition(" leaves its ")[2].removesuffix(".").split(" and ")
    assert set(left) == {one["kind"] for one in others}


@pytest.mark.parametrize("name", TABLE)
def test_the_text_is_the_objects_and_the_config_map_holds_the_whole_plan(name):
    manifest, plan = manifest_of(**TABLE[name]), plan_of(**TABLE[name])
    assert list(yaml.load_all(manifest.yaml(), yaml.CSafeLoader)) == list(manifest.objects)
    assert parse_plan(plan.to_json()) == plan
    text = manifest.objects[0]["data"]["node-plan.json"]
    assert "/home/me" not in text, "nothing of this machine"
    assert len(text) < 20_000, "a ConfigMap holds one MiB, whatever the number of nodes"
    task = parse_task(text)
    assert (task.node, task.settings) == (plan.nodes[0], plan.agent)
    # The folder of the code is this machine's own.
    kept = replace(plan, code=plan.code and replace(plan.code, root=""))
    assert parse_kept_plan(text, plan.run_dir) == kept


def test_texts_that_kubectl_reads_as_something_else_are_quoted():
    texts = ["y", "n", "Y", "N", "1e3", "12e5", "-1E+3", ".5e3", "1.e3", "1_0e3", "09", "0o17"]
    texts += ["0X1F", "0B1", "yes", "off", "true", "null", "~", "1.5", "017", "0x1f"]
    item = {"values": texts, "labels": {text: text for text in texts}}
    manifest = RenderedManifest(opening=(), objects=(item,), namespace="default")
    assert yaml.safe_load(manifest.yaml()) == item
    events = yaml.parse(manifest.yaml())
    scalars = [event for event in events if isinstance(event, yaml.ScalarEvent)]
    assert [one.value for one in scalars if one.style is None] == ["values", "labels"]


def test_numbers_truth_values_and_other_texts_are_written_plainly():
    item = {"a": 3, "b": 1.5, "c": 1e20, "d": True, "e": None, "f": -7, "g": "e3", "h": "1e3x"}
    manifest = RenderedManifest(opening=(), objects=(item,), namespace="default")
    assert yaml.safe_load(manifest.yaml()) == item
    assert not {"'", '"'} & set(manifest.yaml())


def test_an_image_of_others_gets_the_whole_archive_by_the_config_map():
    fields = {**TABLE["pytorchjob-elastic"], "image": "pytorch/pytorch:2.13.0"}
    manifest = manifest_of(**fields)
    archive = base64.b64decode(manifest.objects[0]["binaryData"]["agent.pyz"])
    assert archive == render_agent_archive(read_agent_sources())
    (pod,) = pod_specs(main_object(manifest))
    assert pod["containers"][0]["command"][0] == "python3"
    assert "is in the ConfigMap below" in manifest.yaml().partition("apiVersion")[0]


@pytest.mark.parametrize(
    ("image", "said", "expected"),
    [
        ("registry.example/me/fabric-train:1", None, True),
        ("registry.example/me/fabric-train:1", False, False),
        ("me/train:1", None, False),
        ("me/train:1", True, True),
    ],
)
def test_the_image_s_name_or_the_job_decides_where_the_agent_is(image, said, expected):
    plan = plan_of(**TABLE["pytorchjob-plain"], image=image, agent={"in_image": said})
    assert plan.agent.in_image is expected


@pytest.mark.parametrize(
    ("held", "told"), [("0123456789ab\n", "agent 0123456789ab"), (None, "agent none")]
)
def test_a_pod_whose_image_has_another_agent_says_so_and_ends_for_good(held, told, tmp_path):
    done = run_check(tmp_path, held)
    assert done.returncode == 2
    assert told in done.stderr
    assert read_agent_version() in done.stderr
    assert "fix: build the image again" in done.stderr
    assert "kubernetes.image_pull_policy: Always" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("policy", [None, "Always"])
def test_every_container_pulls_its_image_as_the_job_says(policy):
    fields = TABLE["job-code"]
    section = {**fields["kubernetes"], "image_pull_policy": policy}
    objects = manifest_of(**{**fields, "kubernetes": section}).objects
    (pod,) = pod_specs(list(objects))
    containers = pod["initContainers"] + pod["containers"]
    assert [one.get("imagePullPolicy") for one in containers] == [policy, policy]


def test_a_pod_whose_image_has_that_agent_becomes_it(tmp_path):
    done = run_check(tmp_path, f"{read_agent_version()}\n")
    assert (done.returncode, done.stdout) == (0, "/launcher/agent.pyz /launcher/node-plan.json\n")


def run_check(folder: Path, held: str | None) -> subprocess.CompletedProcess[str]:
    """What the pod starts, with a folder in place of the image's and an echo for its Python."""
    (pod,) = pod_specs(main_object(manifest_of(**TABLE["pytorchjob-plain"])))
    shell, option, check = pod["containers"][0]["command"]
    assert "$(" not in check, "Kubernetes would replace it"
    version = folder / "agent.version"
    if held is not None:
        version.write_text(held)
    check = check.replace("/launcher/agent.version", str(version)).replace("python3", "echo")
    return subprocess.run([shell, option, check], capture_output=True, text=True, timeout=60)


def test_the_config_map_fits_what_kubernetes_and_kubectl_keep():
    config_map = manifest_of(**TABLE["pytorchjob-everything"]).objects[0]
    archive = base64.b64decode(config_map["binaryData"]["agent.pyz"])
    assert len(archive) + len(config_map["data"]["node-plan.json"]) < 2**20
    # A client-side apply keeps the whole object once more in an annotation, of 256 KiB at most.
    assert len(yaml.safe_dump(config_map)) < 240 * 2**10


def test_a_changed_task_is_another_config_map_so_that_running_pods_keep_theirs():
    first = manifest_of(**TABLE["job-fixed"]).objects[0]
    second = manifest_of(**{**TABLE["job-fixed"], "env": {"A": "1"}}).objects[0]
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert first["immutable"] is True


# -- k8s/ -------------------------------------------------------------------------------------


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("k8s_generate", ROOT / "k8s/generate.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = generator()


@pytest.mark.parametrize("file", GENERATE.FILES)
def test_the_files_of_k8s_are_what_their_command_prints(file, monkeypatch, capsys):
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
    assert printed.replace("-f FILE", f"-f {named}") == written


YAML_FILES = sorted(
    path
    for path in (ROOT / "k8s").rglob("*.yaml")
    if not path.is_symlink() and path.parent.name != "monitoring"  # Prometheus' own kinds
)


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_file_opens_with_what_it_needs_and_two_commands(path):
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


def test_the_file_that_people_apply_is_the_one_of_the_base():
    assert (ROOT / "k8s/job.yaml").resolve() == ROOT / "k8s/base/job.yaml"


@pytest.mark.kubectl
@pytest.mark.parametrize("folder", ["base", "overlays/gpu"])
def test_the_base_and_the_overlay_build_and_pass_our_own_check(folder, tmp_path):
    objects = build(folder)
    kinds = {one["kind"] for one in objects}
    assert {"PyTorchJob", "ConfigMap", "PersistentVolumeClaim", "NetworkPolicy"} <= kinds
    assert {"Role", "RoleBinding", "ServiceAccount", "PodDisruptionBudget"} <= kinds
    (tmp_path / "built.yaml").write_text(yaml.safe_dump_all(objects))
    assert run_command(["check", str(tmp_path / "built.yaml")]) == 0


@pytest.mark.kubectl
def test_the_overlay_sets_namespace_image_and_gpus_and_tells_the_workers_of_all():
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


@pytest.mark.parametrize("file", GENERATE.FILES)
def test_each_manifest_passes_our_own_check(file):
    assert run_command(["check", str(ROOT / "k8s" / file)]) == 0


def build(folder: str) -> list[dict]:
    done = subprocess.run(
        ["kubectl", "kustomize", str(ROOT / "k8s" / folder)], capture_output=True, check=True
    )
    return list(yaml.safe_load_all(done.stdout))
