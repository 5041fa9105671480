"""What ``launcher build`` asks of the docker client, and what it tells; a script is the client."""

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.code.place import CodePlace
from launcher.code.record import read_code
from launcher.contract.errors import InputError, LauncherError, TargetError
from launcher.targets.agent_archive import read_agent_version
from launcher.targets.docker import in_image
from launcher.targets.docker.build import (
    DOCKERFILE,
    Builder,
    Built,
    Order,
    check_tag,
    find_client,
    parse_error,
    read_wheels,
)

TAG = "a.org:5000/me/train:1"
# It keeps what it is asked and the tar that it reads; ``says-VERB`` is what it does besides.
CLIENT = """
[ "$2" != version ] || exit 0
cd {folder}
echo "$@" | sed "s|dest=/.*|dest=/ -|" >>asked
[ "$1" != buildx ] || cat >"context-$5"
facts='{{"torch": "2.13.0+cpu", "cuda": ""}}'
case "$*" in *dest=*) dest=${{*#*dest=}}; echo "$facts" >"${{dest% -}}/facts.json";; esac
[ ! -f "says-$1" ] || . "./says-$1"
"""
OLD = '[ "$1" = --version ] && echo Docker version {}, build 1'


def write_client(folder: Path, script: str) -> str:
    folder.mkdir()
    path = folder / "docker"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("scripts", "chosen", "found"),
    [
        ([""], 0, ("buildx", "build")),
        ([OLD.format("20.10.24")], 0, ("build",)),
        ([OLD.format("19.3.1")], 0, ("build",)),
        ([OLD.format("18.9.0"), OLD.format("22.0.1")], 1, ("build",)),
        ([OLD.format("23.0.1"), "exit 1", "", OLD.format("20.1")], 2, ("buildx", "build")),
        ([OLD.format("17.9"), OLD.format("24.0")], 0, "no BuildKit in {}, {}\n  fix: install"),
        ([], 0, "no docker client is on PATH\n  fix: install Docker, or build elsewhere"),
    ],
)
def test_the_first_client_that_has_buildkit_builds(tmp_path, monkeypatch, scripts, chosen, found):
    clients = [write_client(tmp_path / f"{i}", script) for i, script in enumerate(scripts)]
    folders = [os.path.dirname(client) for client in clients]
    monkeypatch.setenv("PATH", ":".join(["/none/such", *folders]))
    if isinstance(found, tuple):
        assert find_client() == (clients[chosen], found)
    else:
        with pytest.raises(TargetError, match=found.format(*clients)):
            find_client()


@pytest.fixture
def order(tmp_path) -> Order:
    """Code with a script in a folder of its own, requirements, and a wheel."""
    inner = tmp_path / "code/inner ö/deep"
    inner.mkdir(parents=True)
    (inner / "train.py").write_text("print('hello')\n")
    (tmp_path / "code/link").symlink_to("inner ö")
    (tmp_path / "small.whl").write_bytes(b"wheel")
    place = CodePlace(root=tmp_path / "code", inner="inner ö/deep", command=("train.py",))
    code = read_code(place, tmp_path / "runs")
    given = {"requirements.txt": "small\n"}
    wheels = (tmp_path / "small.whl",)
    return Order(base="base:1", tag=TAG, code=code, requirements=given, wheels=wheels)


@pytest.fixture
def builder(dockerd, tmp_path, monkeypatch) -> Builder:
    """One with the stand-in; the image is there once a step prints something."""
    write_client(tmp_path / "bin", CLIENT.format(folder=tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.defpath}")
    dockerd.images["base:1"] = {"Id": "base"}

    def show(line: str) -> None:
        print(line)
        dockerd.images[TAG] = {"Id": "after"}

    return Builder(show)


def test_an_image_is_built_in_two_steps_and_pushed(
    builder, order, dockerd, tmp_path, monkeypatch, capfd
):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:1")
    (tmp_path / "says-buildx").write_text("echo '#5 0.12 Collecting small'; echo '#5 DONE 1 s'\n")
    (tmp_path / "says-push").write_text("echo sent\n")
    dockerd.images[TAG] = {"Id": "before"}
    assert builder.build(order) == Built(torch="2.13.0+cpu", cuda="", is_same=False)
    builder.push(TAG)
    assert capfd.readouterr().out == "Collecting small\nCollecting small\nsent\n"
    base, proxy = "--build-arg BASE=base:1", "--build-arg HTTPS_PROXY"
    inner = f"--build-arg INNER=inner ö/deep --build-arg AGENT={read_agent_version()}"
    torch = "--build-arg TORCH=2.13.0 --build-arg CUDA="
    begin = "buildx build --progress=plain --target"
    assert (tmp_path / "asked").read_text().splitlines() == [
        f"{begin} facts {base} {proxy} --output type=local,dest=/ -",
        f"{begin} image {base} {inner} {torch} {proxy} --tag {TAG} --load -",
        f"push {TAG}",
    ]


def test_a_build_reads_its_files_and_the_code_in_folders_that_any_user_may_write_to(
    builder, order, tmp_path
):
    assert builder.build(order).is_same
    given = {
        "Dockerfile": DOCKERFILE,
        "build/in_image.py": Path(in_image.__file__).read_text(),
        "build/requirements.txt": "small\n",
        "agent/agent.pyz": None,
        "agent/agent.version": f"{read_agent_version()}\n",
        "build/wheels/small.whl": "wheel",
    }
    folders = ["code", "code/inner ö", "code/inner ö/deep"]
    code = {"code/inner ö/deep/train.py": "print('hello')\n", "code/link": None}
    for target, names in (("facts", [*given]), ("image", [*given, *folders, *code])):
        with tarfile.open(tmp_path / f"context-{target}") as context:
            assert context.getnames() == names
            for name, text in (given | code).items():
                held = context.extractfile(name) if name in names and text else None
                assert held is None or held.read().decode() == text
            assert {one.mode for one in context if one.isdir()} <= {0o1777}


def test_what_the_client_cannot_do_is_told_in_its_own_words(builder, order, dockerd, tmp_path):
    def fails(act: Callable[[], object], verb: str, said: str) -> tuple[str, str]:
        (tmp_path / f"says-{verb}").write_text(f"{said}\nexit 1\n")
        with pytest.raises(LauncherError) as refused:
            act()
        return refused.value.what, refused.value.hint

    build = lambda: builder.build(order)  # noqa: E731
    step = "echo '#9 0.1 error: no'; echo '#9 0.1   fix: yes'; echo; echo '#9 ERROR: it ended'"
    assert fails(build, "buildx", step) == (f"{TAG} was not built: no", "yes")
    # One that ends at once reads nothing.
    ended = (f"{TAG} was not built: docker ended with exit code 1", STANDS)
    assert fails(build, "buildx", "exec <&-") == ended
    dockerd.images.clear()
    what = "--base base:1: is not on this machine, and cannot be pulled: no such host"
    fix = "correct --base; docker images lists what is here"
    assert fails(build, "pull", "echo; echo Pulling; echo no such host") == (what, fix)
    said = f"{TAG} was built, but not pushed: "
    push = lambda: builder.push(TAG)  # noqa: E731
    login = (f"{said}no basic auth", "docker login a.org:5000, then the same command")
    assert fails(push, "push", "echo strange; echo no basic auth") == login
    assert fails(push, "push", "echo strange") == (f"{said}strange", f"docker push {TAG}")


SHELL = "--base with a shell, python3 and torch, such as pytorch/pytorch"
STANDS = "what the build printed stands above"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["#6 start", "#7 0.1 error: first", "#7 0.1   fix: one", "#8 12.5 error: last",
          "#8 12.5   fix: two", "#8 12.6 more", "ERROR: failed to solve"], ("last", "two")),
        (["#7 0.1 error: it has no fix"], ("it has no fix", "")),
        (['#7 unable to find user root: "/bin/sh"', "ERROR: running [/bin/sh -c a]: 1"],
         ("ERROR: running a step: 1", SHELL)),
        (["#3 sending context", "#3 ERROR: strange"], ("ERROR: strange", STANDS)),
    ],
)  # fmt: skip
def test_a_build_that_fails_is_told_by_a_steps_word_or_by_the_engines(lines, told):
    assert parse_error(lines) == told


@pytest.mark.parametrize(
    ("tag", "pushes", "what"),
    [
        ("train:1", False, None),
        ("localhost/train", True, None),
        ("a.org/me/train:1", True, None),
        ("host:5000/train", True, None),
        ("Me/Train", False, "--tag Me/Train: is no image's name"),
        (f"me/train@sha256:{'0' * 64}", False, "a digest is made by the registry"),
        ("train:1", True, "--push: --tag train:1 names no registry"),
        ("me/train:1.0", True, "names no registry"),
    ],
)
def test_a_tag_is_an_images_name_and_names_a_registry_that_is_pushed_to(tag, pushes, what):
    if what is None:
        check_tag(tag, pushes=pushes)
    else:
        with pytest.raises(InputError, match=what) as refused:
            check_tag(tag, pushes=pushes)
        assert "--tag registry.example/me/train:1" in refused.value.hint


def test_a_wheelhouse_is_a_folder_with_packages(tmp_path):
    with pytest.raises(InputError, match="is no folder with packages"):
        read_wheels(tmp_path)
    for name in ("b.whl", "a.tar.gz", "c.zip", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in read_wheels(tmp_path)] == ["a.tar.gz", "b.whl", "c.zip"]
