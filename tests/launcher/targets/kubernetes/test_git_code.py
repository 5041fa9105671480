"""Code that each pod fetches from a git repository: what is rendered, and what the pod runs."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.contract.errors import ExitCode
from tests.k8s.manifests_table import GIT, TABLE, main_object, manifest_of, pod_specs
from tests.programs import run_program

TOKEN = "Basic " + base64.b64encode(b"me:s3cret").decode()


def git(*words: str, cwd: Path) -> str:
    of_somebody = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    done = run_program(["git", *of_somebody, *words], cwd=cwd, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub/train.py").write_text("print('first')\n")
    git("init", "-q", cwd=folder)
    git("add", ".", cwd=folder)
    git("commit", "-qm", "first", cwd=folder)
    return folder


def commit_of(repository: Path) -> str:
    return git("rev-parse", "HEAD", cwd=repository)


class _Handler(BaseHTTPRequestHandler):
    """git's own server of the smart protocol, behind a password."""

    root: Path

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != TOKEN:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic realm=git")
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        size = int(self.headers.get("Content-Length") or 0)
        env = {
            **os.environ, "GIT_PROJECT_ROOT": str(self.root), "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command, "PATH_INFO": path, "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(size),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }  # fmt: skip
        done = subprocess.run(
            ["git", "http-backend"], input=self.rfile.read(size), env=env, capture_output=True
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        self.send_response(200)
        for line in head.decode().splitlines():
            name, _, value = line.partition(": ")
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Where the repository is served to whoever knows the password."""
    handler = type("Handler", (_Handler,), {"root": tmp_path})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/repository"
    server.shutdown()
    server.server_close()


def fetch(source: dict[str, str], pod: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """Runs what the init container runs, with ``pod`` in the place of its folders."""
    manifest = manifest_of(**{**TABLE["job-git"], "code": source, "workdir": "sub"})
    (container,) = pod_specs(main_object(manifest))[0]["initContainers"]
    (pod / "code").mkdir(parents=True, exist_ok=True)
    words = [word.replace("/launcher/", f"{pod}/") for word in container["command"]]
    words = [word.replace("HOME=/tmp", f"HOME={pod}") for word in words]
    assert not any("$(" in word for word in words), "Kubernetes would replace it"
    env = {"PATH": path or os.environ["PATH"]}
    return run_program([f"/bin/{words[0]}", *words[1:]], env=env)


@pytest.mark.parametrize("ending", ["", "\n"])
def test_a_pod_fetches_the_commit_with_the_password_of_the_secret_and_no_later_one(
    ending, repository, url, tmp_path
):
    first, pod = commit_of(repository), tmp_path / "pod"
    (repository / "sub/train.py").write_text("print('second')\n")
    git("commit", "-qam", "second", cwd=repository)
    (pod / "git").mkdir(parents=True)
    for key, value in (("username", "me"), ("password", "s3cret")):
        (pod / "git" / key).write_text(value + ending)
    for _ in range(2):
        done = fetch({"git": url, "ref": first, "secret": "key"}, pod)
        assert done.returncode == 0, done.stderr
        assert (pod / "code/sub/train.py").read_text() == "print('first')\n"
    (pod / "git/password").write_text("wrong")
    done = fetch({"git": url, "ref": commit_of(repository)}, pod)
    assert done.returncode != 0
    assert "Authentication failed" in done.stderr


def test_submodules_come_along_and_the_working_folder_is_made(repository, tmp_path):
    outer = tmp_path / "outer"
    outer.mkdir()
    git("init", "-q", cwd=outer)
    (outer / "train.py").write_text("")
    allowed = ("-c", "protocol.file.allow=always")
    git(*allowed, "submodule", "add", "-q", f"file://{repository}", "inner", cwd=outer)
    git("add", ".", cwd=outer)
    git("commit", "-qm", "first", cwd=outer)
    pod = tmp_path / "pod"
    pod.mkdir()
    (pod / ".gitconfig").write_text('[protocol "file"]\nallow = always\n')
    done = fetch({"git": f"file://{outer}", "ref": commit_of(outer)}, pod)
    assert done.returncode == 0, done.stderr
    assert (pod / "code/inner/sub/train.py").exists()
    assert (pod / "code/sub").is_dir()


def test_an_image_without_git_is_told_with_the_key_for_another(tmp_path):
    done = fetch({**GIT}, tmp_path, path="/nowhere")
    assert done.returncode == 2
    assert done.stderr == (
        "error: the image has no git\n  fix: code.image: an image that has, such as alpine/git\n"
    )


def test_the_key_is_seen_by_the_fetching_container_alone():
    manifest = manifest_of(**TABLE["pytorchjob-git"])
    (pod,) = pod_specs(main_object(manifest))
    (container,), (own,) = pod["containers"], pod["initContainers"]
    assert {"name": "git", "secret": {"secretName": "deploy-key"}} in pod["volumes"]
    assert "git" in {mount["name"] for mount in own["volumeMounts"]}
    assert "git" not in {mount["name"] for mount in container["volumeMounts"]}
    assert own["image"] == "alpine/git"
    assert container["workingDir"] == "/launcher/code/sub folder/ä"
    assert manifest.objects[0]["data"]["passwd"].startswith("launcher:x:1000:1000:")
    assert "# - the Secret deploy-key with the key to the code" in manifest.yaml()


# -- from a job file ------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., str]:
    def write(**changes: Any) -> str:
        fields = {"name": "train", "command": ["train.py"], "code": {**GIT, **changes}}
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump({**fields, "kubernetes": {"kind": "job"}}))
        return str(path)

    return write


def test_a_run_fetches_its_code_and_so_does_its_repetition(typed, job, server, monkeypatch):
    monkeypatch.setattr("launcher.api.launch.follow_in_background", lambda *_: None)
    code, said = typed("run", job(), "--on", "kubernetes", "--detach")
    assert code == 0, said
    first = said.split()[-1]
    code, said = typed("run", "--again", first, "--detach")
    assert code == 0, said
    for run in (first, said.split()[-1]):
        text = Path("runs", run, "job.json").read_text()
        assert GIT["ref"] in text
    code, said = typed("render", job(), "--on", "kubernetes")
    assert code == 0, said
    assert [one["kind"] for one in yaml.safe_load_all(said)] == ["ConfigMap", "Service", "Job"]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"ref": "main"}, "found ref: main; accepted: a folder, image, or {git: URL"),
        ({"git": "https://me:t0ken@example.com/repo.git"}, "found git; accepted"),
        ({"git": "--upload-pack=touch x"}, "found git; accepted"),
        ({"git": "ext::sh -c touch"}, "found git; accepted"),
        ({"branch": "main"}, "found a mapping; accepted"),
    ],
)
def test_what_is_no_commit_of_a_repository_is_refused_and_no_password_is_shown(
    changes, found, typed, job
):
    code, said = typed("render", job(**changes), "--on", "kubernetes")
    assert code == ExitCode.BAD_INPUT
    assert found in said
    assert "t0ken" not in said
    assert "ref" not in changes or f"fix: git ls-remote {GIT['git']} lists them" in said


@pytest.mark.parametrize("target", ["local", "docker", "slurm"])
def test_nodes_that_fetch_no_code_say_what_to_do_instead(target, typed, job):
    code, said = typed("render", job(), "--on", target)
    assert code == ExitCode.BAD_INPUT
    assert "code: found git, but nodes of this target cannot fetch code" in said
    assert f"fix: git clone {GIT['git']}, and --code FOLDER" in said


def test_doctor_looks_for_the_secret(server, typed, job):
    server.put("namespaces", {"metadata": {"name": "team"}})
    said = typed("doctor", job(), "--on", "kubernetes")[1]
    assert "kubectl create secret generic deploy-key -n team" in said
    server.put("secrets", {"metadata": {"name": "deploy-key"}, "data": {"ssh-privatekey": ""}})
    assert "is there, with ssh-privatekey" in typed("doctor", job(), "--on", "kubernetes")[1]
