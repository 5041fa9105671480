"""The training code on its way into pods: what is rendered, submitted, refused and taken away."""

import base64
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.api.choose_target import room_of
from launcher.contract.errors import ExitCode
from launcher.doctor.finding import Status
from launcher.job.spec import JobSpec
from launcher.runs.folder import RunFolder
from launcher.targets.kubernetes.api.cluster import Cluster
from launcher.targets.kubernetes.target import KubernetesTarget
from tests.k8s.manifests_table import GPUS, KINDS, manifest_of, pod_specs
from tests.launcher.fake_cluster import FakeCluster
from tests.launcher.own_script.project import make_project

WORDS = ("train.py", "--on", "kubernetes", "--nnodes", "2", "--nproc-per-node", "1")
Command = Callable[..., tuple[int, str]]
Object = dict[str, Any]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = make_project(tmp_path)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def launcher(typed: Command, project: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """A command in the project's folder: its exit code, and all that it said."""
    monkeypatch.chdir(project)
    return typed


def objects_of(text: str) -> list[Object]:
    return list(yaml.safe_load_all(text))


def maps_of(objects: Iterable[Object]) -> list[Object]:
    """The ConfigMaps with code."""
    return [one for one in objects if "launcher.code" in one["metadata"]["labels"]]


def size_of(project: Path) -> str:
    """The words for what is in the folder: its files are all of the code."""
    sizes = [path.stat().st_size for path in project.iterdir()]
    return f"{len(sizes)} files of {sum(sizes) / 1000:.1f} kB"


def unpack(objects: list[Object], folder: Path) -> Path:
    """Runs what the init container runs, with the mounts' places in ``folder``."""
    done = start_unpacking(objects, folder)
    assert done.returncode == 0, done.stderr
    return folder / "code"


def start_unpacking(objects: list[Object], folder: Path) -> subprocess.CompletedProcess[str]:
    parts = folder / "code-parts"
    parts.mkdir(parents=True, exist_ok=True)
    (volume,) = [one for one in pod_specs(objects)[0]["volumes"] if one["name"] == "code-parts"]
    named = {one["metadata"]["name"]: one for one in maps_of(objects)}
    for source in volume["projected"]["sources"]:
        for name, data in named[source["configMap"]["name"]]["binaryData"].items():
            assert not (parts / name).exists() or folder.joinpath("code").exists()
            (parts / name).write_bytes(base64.b64decode(data))
    python, *words = pod_specs(objects)[0]["initContainers"][0]["command"]
    assert python == "python3"
    words = [word.replace("/launcher/code", f"{folder}/code") for word in words]
    argv = [sys.executable, *words]
    return subprocess.run(argv, env={"LC_ALL": "C"}, capture_output=True, text=True)


# -- what is rendered -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_pods_of_each_kind_unpack_the_code_and_start_in_it(kind, launcher, project, tmp_path):
    code, text = launcher("render", *WORDS, "--kind", kind)
    assert code == 0, text
    objects = objects_of(text)
    (config_map,) = maps_of(objects)
    assert config_map["immutable"] is True
    assert objects[-1] is not config_map, "the job comes last"
    for pod in pod_specs(objects):
        assert {"name": "code", "emptyDir": {}} in pod["volumes"]
        assert pod["containers"][0]["workingDir"] == "/launcher/code"
    unpacked = unpack(objects, tmp_path / "pod")
    assert {path.name: path.read_text() for path in unpacked.iterdir()} == {
        path.name: path.read_text() for path in project.iterdir()
    }
    (tmp_path / "job.yaml").write_text(text)
    assert launcher("check", str(tmp_path / "job.yaml"))[0] == 0


def test_names_links_and_modes_are_kept_and_unpacking_twice_is_the_same(
    launcher, project, tmp_path
):
    inner = project / "mehr $(HOME) $$ täglich"
    inner.mkdir()
    (inner / "a b.sh").write_text("#!/bin/sh\n")
    (inner / "a b.sh").chmod(0o755)
    (inner / "ländler").symlink_to("../data.txt")
    (project / os.fsdecode(b"not utf-8 \xff")).write_text("x")
    objects = objects_of(launcher("render", *WORDS)[1])
    for _ in range(2):
        unpacked = unpack(objects, tmp_path / "pod")
        names = {path.relative_to(unpacked) for path in unpacked.rglob("*")}
        assert names == {path.relative_to(project) for path in project.rglob("*")}
        assert os.access(unpacked / inner.name / "a b.sh", os.X_OK)
        assert os.readlink(unpacked / inner.name / "ländler") == "../data.txt"


def test_the_folder_that_the_script_starts_in_is_made_though_no_file_is_in_it(
    launcher, project, tmp_path, monkeypatch
):
    (project / "$(empty) $$").mkdir()
    monkeypatch.chdir(project / "$(empty) $$")
    words = ("../train.py", "--code", "..", *WORDS[1:])
    objects = objects_of(launcher("render", *words, "--set", "name=train")[1])
    (pod,) = pod_specs(objects)
    assert pod["containers"][0]["workingDir"] == "/launcher/code/$(empty) $$"
    *_, inner, _ = pod["initContainers"][0]["command"]
    assert inner == "$$(empty) $$$$", "Kubernetes makes one $ of two"


def test_the_manifest_tells_files_commit_and_size_and_nothing_of_this_machine(launcher, project):
    plain = launcher("render", *WORDS)[1].partition("apiVersion")[0]
    assert re.search(rf"# Code: {re.escape(size_of(project))}, \d\.\d kB packed\.\n", plain)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        of_somebody = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=a"]
        subprocess.run(["git", *of_somebody, *words], check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    told = launcher("render", *WORDS)[1]
    assert f"kB packed, commit {head[:12]}.\n" in told
    (project / "helper.py").write_text('NAME = "other"\n')
    changed = launcher("render", *WORDS)[1]
    assert f"commit {head[:12]} with changes that are not committed.\n" in changed
    assert "kubectl apply --server-side -f FILE" in told
    assert str(project) not in told
    names = [maps_of(objects_of(text))[0]["metadata"]["name"] for text in (told, changed)]
    assert names[0] != names[1], "named by the content"
    assert launcher("render", *WORDS)[1] == changed


@pytest.mark.parametrize("words", [("--code", "image"), ("--set", "workdir=/workspace")])
def test_code_of_the_image_stays_there(words, launcher):
    text = launcher("render", *WORDS, *words)[1]
    assert "initContainers" not in text
    assert "code.tar.gz" not in text
    assert "kubectl apply -f FILE" in text


def test_the_init_container_asks_for_what_the_pod_has_but_for_its_devices():
    manifest = manifest_of(**GPUS, takes_code=True, kubernetes={"volumes": ["pvc/a:/data:ro"]})
    (pod,) = pod_specs(manifest.objects[-1])
    asked = {"cpu": "64", "memory": "512Gi"}
    assert pod["initContainers"][0]["resources"] == {"requests": asked, "limits": asked}
    assert pod["initContainers"][0]["image"] == pod["containers"][0]["image"]
    assert pod["initContainers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.fixture
def big(project: Path) -> Path:
    """A project of 2 MB, which cannot be packed."""
    (project / "big.bin").write_bytes(os.urandom(2_000_000))
    return project


def test_more_code_than_one_object_takes_is_in_several_and_comes_together_again(
    launcher, big, tmp_path
):
    code, text = launcher("render", *WORDS)
    assert code == 0, text[-2000:]
    objects = objects_of(text)
    assert len(maps_of(objects)) == 3
    name = maps_of(objects)[0]["metadata"]["name"].removesuffix("-00")
    assert f"# ConfigMaps: {name}-00 to {name}-02.\n" in text
    unpacked = unpack(objects, tmp_path / "pod")
    assert (unpacked / "big.bin").read_bytes() == (big / "big.bin").read_bytes()


def test_a_pod_that_finds_other_code_than_its_manifest_names_says_so_and_ends(
    launcher, big, tmp_path
):
    objects = objects_of(launcher("render", *WORDS)[1])
    middle = maps_of(objects)[1]["binaryData"]
    middle["code.tar.gz.01"] = base64.b64encode(os.urandom(700_000)).decode()
    done = start_unpacking(objects, tmp_path / "pod")
    assert done.returncode == 1
    assert "is not the code of this run" in done.stderr
    assert "fix: apply the whole manifest again" in done.stderr
    assert not (tmp_path / "pod/code").exists()


@pytest.mark.parametrize("command", ["render", "run"])
def test_code_that_no_config_maps_take_is_refused_with_its_largest_files_and_the_ways_that_work(
    command, server, launcher, project
):
    (project / "big.bin").write_bytes(os.urandom(8_500_000))
    code, said = launcher(command, *WORDS)
    assert code == ExitCode.BAD_INPUT
    assert f"the code in {project}, 4 files of 8,50" in said
    assert "which take 8,000 kB packed; the largest files:\n    8,500 kB  big.bin" in said
    assert "launcher build" in said
    assert not server.objects


# -- submitting -----------------------------------------------------------------------------------


@pytest.fixture
def planned(server: FakeCluster, launcher: Command, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run that is recorded, and not submitted yet."""
    monkeypatch.setattr("launcher.api.starting.launch.follow_in_background", lambda *_: None)
    code, said = launcher("run", *WORDS, "--kind", "job", "--detach")
    assert code == 0, said
    server.requests.clear()
    return RunFolder(Path("runs", said.split()[-1]).absolute())


def submit(run: RunFolder) -> None:
    """As a launcher that knows the run by its folder alone."""
    KubernetesTarget(run.path.parent).submit(run.read_plan())


def code_maps(server: FakeCluster) -> list[Object]:
    return maps_of(server.objects.values())


def test_all_parts_of_the_code_are_there_before_the_job_and_go_with_it(big, server, planned):
    submit(planned)
    job = server.objects["jobs", "train"]
    owners = [one["metadata"]["ownerReferences"][0]["uid"] for one in code_maps(server)]
    assert owners == [job["metadata"]["uid"]] * 3
    made = [
        path.rpartition("/")[2]
        for method, path, query in server.requests
        if method in ("POST", "PATCH") and "dryRun" not in query
    ]
    names = [one["metadata"]["name"] for one in code_maps(server)]
    assert max(map(made.index, names)) < made.index("jobs")
    KubernetesTarget(planned.path.parent).stop(planned.run_id, 1.0)
    assert not server.objects


def test_the_next_run_of_the_same_code_has_an_object_of_its_own(server, planned, launcher):
    submit(planned)
    (first,) = code_maps(server)
    server.delete("jobs", "train")
    _, said = launcher("run", "--again", planned.run_id, "--detach")
    again = RunFolder(Path("runs", said.split()[-1]).absolute())
    submit(again)
    (second,) = code_maps(server)
    assert first["binaryData"] == second["binaryData"]
    assert first["metadata"]["name"] != second["metadata"]["name"]


@pytest.mark.parametrize("during", ["create", "merge"])
def test_ctrl_c_while_it_is_submitted_leaves_nothing(during, server, planned, monkeypatch):
    call = getattr(Cluster, during)

    def interrupted(self: Cluster, item: Any, *args: Any, **options: Any) -> Any:
        if not options.get("dry_run"):
            assert code_maps(server)
            call(self, item, *args, **options)
            raise KeyboardInterrupt
        return call(self, item, *args, **options)

    monkeypatch.setattr(Cluster, during, interrupted)
    with pytest.raises(KeyboardInterrupt):
        submit(planned)
    assert not server.objects


@pytest.mark.parametrize(
    ("words", "before"), [(("stop", "latest"), "its ownership"), (("ps",), "the job")]
)
def test_what_a_killed_launcher_has_made_is_found_and_removed(
    words, before, server, launcher, monkeypatch
):
    started: list[subprocess.Popen[bytes]] = []
    put = server.put

    def killing(plural: str, item: Object, event: str = "MODIFIED") -> Object:
        is_owned = "ownerReferences" in item["metadata"]
        if plural == "jobs" if before == "the job" else is_owned:
            started[0].kill()
            started[0].wait()
            raise BrokenPipeError
        return put(plural, item, event)

    argv = [sys.executable, "-m", "launcher", "run", *WORDS, "--kind", "job"]
    with monkeypatch.context() as patched, (Path.cwd().parent / "said").open("wb") as said:
        patched.setattr(server, "put", killing)
        started.append(subprocess.Popen(argv, stdout=said, stderr=said))
        assert started[0].wait(60) == -signal.SIGKILL
    assert code_maps(server)
    if before != "the job":
        # The job runs: what is there is needed, and goes with the job.
        assert launcher("ps")[0] == 0
        assert code_maps(server)
    code, told = launcher(*words)
    assert code == 0, told
    assert not server.objects


def test_losing_the_race_for_the_name_takes_only_ones_own_away(server, planned, monkeypatch):
    call = Cluster.create

    def second(self: Cluster, item: Object, *, dry_run: bool = False) -> Object:
        if not dry_run:
            other = {"kind": "Job", "apiVersion": "batch/v1", "metadata": {"name": "train"}}
            server.put("jobs", other)
        return call(self, item, dry_run=dry_run)

    monkeypatch.setattr(Cluster, "create", second)
    with pytest.raises(Exception, match="Job train is in namespace team already"):
        submit(planned)
    assert {plural for plural, _ in server.objects} == {"jobs", "services"}


def test_a_run_whose_folder_has_lost_its_code_is_not_submitted(server, planned):
    (planned.path / "code.tar.gz").unlink()
    with pytest.raises(Exception, match=f"the code of {planned.run_id} is not in"):
        submit(planned)
    assert not server.objects


# -- doctor, and what a pod says ------------------------------------------------------------------


def test_doctor_tells_the_code_and_when_it_is_too_much(server, project):
    server.put("namespaces", {"metadata": {"name": "team"}})
    job = JobSpec.model_validate({"name": "train", "command": ["train.py"]})
    rows = {row.check: row for row in room_of("kubernetes").diagnose(job, project, 60.0)}
    assert rows["code"].status is Status.OK
    assert rows["code"].found.startswith(f"{size_of(project)}, ")
    assert rows["dry run"].status is Status.OK
    (project / "weights.bin").write_bytes(os.urandom(8_100_000))
    rows = {row.check: row for row in room_of("kubernetes").diagnose(job, project, 60.0)}
    assert rows["code"].status is Status.FAILED
    assert "\n" not in rows["code"].found
    assert "kubernetes.volumes" in rows["code"].fix
