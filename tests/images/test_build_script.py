"""images/build: its options, the client it picks, and what it says when it cannot build."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.programs import run_program

ROOT = Path(__file__).resolve().parents[2]
NO_ENGINE = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}


def fake_docker(folder: Path, version: str, *, buildx: bool, says: str = "") -> Path:
    """A docker client that answers the questions images/build asks before it builds."""
    folder.mkdir(parents=True)
    client = folder / "docker"
    client.write_text(
        "#!/bin/sh\n"
        f'[ "$1 $2" = "buildx version" ] && exit {0 if buildx else 1}\n'
        f'[ "$1" = --version ] && echo "Docker version {version}, build 0" && exit 0\n'
        f"echo {says or folder.name} >&2; exit 1\n"
    )
    client.chmod(0o755)
    return client


def test_without_an_engine_it_exits_3_and_says_what_to_do(project):
    done = project.build(**NO_ENGINE)
    assert done.returncode == 3
    what, fix = done.stderr.splitlines()
    assert what.startswith("error: ")
    assert fix.startswith("  fix: ")


def test_if_possible_never_fails_and_leaves_the_reason_for_the_launcher(project):
    done = project.build("--if-possible", **NO_ENGINE)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1
    assert done.stdout.startswith("image: not built: ")
    (reason,) = (project.root / ".image/cpu.reason").read_text().splitlines()
    assert "; fix: " in reason


def test_if_possible_fails_where_a_run_would_train_in_an_image_from_before(project, tmp_path):
    client = fake_docker(tmp_path / "bin", "28.2.2", buildx=True)
    client.write_text(
        "#!/bin/sh\n"
        '[ "$1 $2" = "buildx build" ] && echo "error: no wheel of torch" && exit 1\n'
        "echo sha256:0\n"
    )
    done = project.build("--if-possible", PATH=str(client.parent))
    assert done.returncode == 1
    what, _, fix, old = done.stderr.splitlines()
    assert what == "error: no wheel of torch"
    assert fix.startswith("  fix: ")
    image = old.split()[0]
    assert image.startswith("fabric-train:")
    assert old.endswith(
        f" is from before, with the old code: launcher run --image {image} trains in it"
    )


def test_proxies_of_the_environment_reach_the_build_and_their_values_no_log(project, tmp_path):
    client = fake_docker(tmp_path / "bin", "28.2.2", buildx=True)
    client.write_text('#!/bin/sh\n[ "$1" = image ] && echo sha256:0\nexit 0\n')
    variables = {"http_proxy": "http://me:password@proxy:1", "NO_PROXY": "localhost"}
    done = project.build(PATH=str(client.parent), **variables)
    assert done.returncode == 0, done.stderr
    command = project.log().splitlines()[0]
    assert "--build-arg http_proxy --build-arg" in command
    assert "--build-arg NO_PROXY --" in command
    assert "password" not in project.log()
    given = [word for word in command.split() if word.lower().endswith("_proxy")]
    assert set(variables) <= set(given) <= set(os.environ) | set(variables)


@pytest.mark.docker
def test_if_possible_takes_the_reason_back_when_it_builds(built_project):
    built_project.build("--if-possible", **NO_ENGINE)
    reason = built_project.root / ".image/cpu.reason"
    assert reason.exists()
    done = built_project.build("--if-possible")
    assert "is up to date" in done.stdout
    assert not reason.exists()


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        pytest.param([], {"FLAVOR": "gpu"}, "FLAVOR=gpu", id="an unknown flavor"),
        pytest.param([], {"WHEELHOUSE": "../wheels"}, "WHEELHOUSE=../wheels", id="wheels outside"),
        pytest.param([], {"WHEELHOUSE": "dist"}, "WHEELHOUSE=dist", id="wheels that are ignored"),
        pytest.param(
            ["--push"], {"IMAGE": "fabric-train:1"}, "names no registry", id="no registry"
        ),
    ],
)
def test_a_wrong_option_exits_2_before_any_engine_is_asked(project, arguments, variables, said):
    done = project.build(*arguments, **variables, **NO_ENGINE)
    assert done.returncode == 2
    assert said in done.stderr
    assert "  fix: " in done.stderr


def test_a_client_without_buildkit_is_passed_over_for_one_with_it(
    build_script, tmp_path, monkeypatch
):
    new = fake_docker(tmp_path / "new", "28.2.2", buildx=False)
    old = fake_docker(tmp_path / "old", "20.10.24+dfsg1", buildx=False)
    monkeypatch.setenv("PATH", f"{tmp_path}/empty:{new.parent}:{old.parent}")
    assert build_script.find_client() == (str(old), (str(old), "build"))


def test_a_newer_client_builds_by_its_buildx_plugin(build_script, tmp_path, monkeypatch):
    client = str(fake_docker(tmp_path / "new", "28.2.2", buildx=True))
    monkeypatch.setenv("PATH", str(tmp_path / "new"))
    assert build_script.find_client() == (client, (client, "buildx", "build", "--load"))


def test_a_machine_without_a_fit_client_is_told_which_one_lacks_what(
    build_script, tmp_path, monkeypatch
):
    fake_docker(tmp_path / "new", "28.2.2", buildx=False)
    monkeypatch.setenv("PATH", str(tmp_path / "new"))
    with pytest.raises(build_script.BuildError, match=r"no BuildKit in .*/new/docker \(28\.2\.2\)"):
        build_script.find_client()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(build_script.BuildError, match="no docker client on PATH"):
        build_script.find_client()


@pytest.mark.parametrize(
    ("variables", "wheels", "cuda"),
    [
        pytest.param({}, 36, "", id="cpu from a wheelhouse"),
        pytest.param({"TORCH_INDEX_URL": "index"}, 0, "", id="cpu from an index of its own"),
        pytest.param({}, 0, "13.0", id="cpu from the default index, which has CUDA builds only"),
        pytest.param({"CUDA_VERSION": ""}, 0, "", id="cpu, as asked"),
        pytest.param({"CUDA_VERSION": "12.8"}, 36, "12.8", id="a CUDA build for cpu, as asked"),
        pytest.param({"FLAVOR": "cuda"}, 36, "13.0", id="cuda"),
        pytest.param({"FLAVOR": "cuda", "CUDA_VERSION": ""}, 36, "", id="a CPU build for cuda"),
    ],
)
def test_the_cuda_version_follows_from_flavor_and_source(build_script, variables, wheels, cuda):
    decided, remark = build_script.decide_cuda_version(
        build_script.parse_options(variables), wheels
    )
    assert decided == cuda
    flavor_has_cuda = variables.get("FLAVOR") == "cuda"
    assert bool(remark) == (bool(cuda) != flavor_has_cuda and cuda != "12.8")


def test_root_installs_whatever_the_base_s_user_and_the_image_ends_with_a_number():
    text = (ROOT / "images/Dockerfile").read_text()
    stages = {part.split("\n")[0].split(" AS ")[-1]: part for part in text.split("\nFROM ")[1:]}
    users = {name: re.findall(r"^USER (.+)$", part, re.MULTILINE) for name, part in stages.items()}
    assert stages["python"].index("USER root") < stages["python"].index("RUN")
    assert {name: own for name, own in users.items() if own} == {
        "python": ["root"],
        "smoke-dependencies": ["54321:54321"],
        "smoke": ["54321:54321"],
        "image": ["${UID}:${GID}"],
    }


def test_the_default_cuda_base_is_of_the_cuda_that_torch_is_built_for(build_script):
    base = build_script.parse_default_base((ROOT / "images/Dockerfile").read_text(), "cuda")
    assert f":{build_script.INDEX_CUDA_VERSION}." in base


@pytest.mark.parametrize(
    ("log", "error"),
    [
        pytest.param("#9 1.20 error: a\n#9 1.20   fix: b\n#9 ERROR: executor failed\n", ("a", "b"),
            id="ours"),
        pytest.param("#9 1.2 error: a\n#9 1.3   fix: b\n#9 2.0 error: c\n#9 2.0   fix: d\n",
            ("c", "d"), id="the last of ours"),
        pytest.param("#1 x\nERROR: process failed\n", ("ERROR: process failed", "see the log"),
            id="theirs"),
        pytest.param("#1 killed", ("killed", "see the log"), id="no error at all"),
        pytest.param("", ("?", "see the log"), id="an empty log"),
    ],
)  # fmt: skip
def test_the_error_and_its_fix_are_found_in_the_build_log(build_script, log, error):
    assert build_script.parse_error(log) == error


def test_a_wheelhouse_for_another_python_than_the_images_is_not_downloaded():
    done = run_program((sys.executable, ROOT / "images/wheelhouse"), env={"IMAGE_PYTHON": "3.99"})
    assert done.returncode == 1
    assert "the cpu image has Python 3.99" in done.stderr
    assert "  fix: make wheelhouse PYTHON=python3.99" in done.stderr
