"""The step of a build in the image: where it installs, and what pip's output is told as."""

import importlib.util
import os
import subprocess
import sys
import sysconfig

import pytest

from launcher.targets.docker import in_image
from tests.programs import run_program

# What is asked of it, and the files among the words; then what the test says.
PYTHON = """#!/bin/sh
for word; do echo "${word##*/}"; [ ! -f "$word" ] || cat "$word"; done
echo "$PIP_NO_INPUT $KEPT"
[ ! -f said ] || . ./said
"""
ASKED = "-m pip install --constraint torch.txt torch==9.8.7+x -r requirements.txt small 1 kept"
# As pip 23.2 says it.
TORCH = """The conflict is caused by:
    The user requested torch==2.1.0
    other 2.0 depends on torch<2
    The user requested (constraint) torch{}==9.8.7+x
"""
RETRY = "WARNING: Retrying (Retry(total=0)) after connection broken by '%s': /simple/small/\n"
REFUSED = "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] %s (_ssl.c:1)'))"
MATCH = "ERROR: No matching distribution found for small\n"
WHEELS = "pip download -r FILE -d wheels, where there is a network; then --wheelhouse wheels"
CA = "a base image that holds your CA's certificate (launcher docs behind-a-firewall)"
OTHER = (
    "the requirements want another torch than the base image's 9.8.7+x: "
    "The user requested torch==2.1.0",
    "leave torch out of the requirements, or --base with the torch that they want",
)
REACH = "pip does not reach its index from the build: "
CANNOT = "pip cannot install the requirements: "
CORRECT = "correct the requirements; what pip printed stands above"
VERSION = ".".join(map(str, sys.version_info[:2]))


@pytest.fixture
def given(tmp_path, monkeypatch):
    """A folder as the build mounts it, beside a Python of the image that has pip and torch."""
    site = tmp_path / "site"
    (site / "torch-9.8.7+x.dist-info").mkdir(parents=True)
    (site / "torch-9.8.7+x.dist-info/METADATA").write_text("Name: torch\nVersion: 9.8.7+x\n")
    (tmp_path / "requirements.txt").write_text("small\n")
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    monkeypatch.setattr(in_image, "GIVEN", tmp_path)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setattr(sys, "prefix", "/an/environment")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("KEPT", "kept")
    return tmp_path


@pytest.mark.parametrize(
    ("said", "has_wheels", "what", "fix"),
    [
        (TORCH.format(""), False, *OTHER),
        # The base image's pip has a constraint of its own.
        (TORCH.format("<=3,"), False, *OTHER),
        ("".join(RETRY % (REFUSED % text) for text in ("a", "b", "x" * 300)), False,
         "pip does not trust the certificate of its index: " + "x" * 200, f"{CA}; or {WHEELS}"),
        ("".join(RETRY % text for text in ("a", "b", "y" * 300)), False, REACH + "y" * 200, WHEELS),
        ("Could not fetch URL https://a.org/small/: no route\n", False, REACH + "no route", WHEELS),
        ("ERROR: another\n" + MATCH, True, CANNOT + MATCH[7:-1],
         f"put it into the folder of --wheelhouse, for the image's Python {VERSION}"),
        (MATCH, False, CANNOT + MATCH[7:-1], CORRECT),
        (MATCH + f"ERROR: {'z' * 300}\n", True, CANNOT + "z" * 200, CORRECT),
        ("", False, CANNOT + "it says nothing", CORRECT),
    ],
)  # fmt: skip
def test_what_pip_says_is_repeated_and_its_failure_told_with_the_fix(
    given, capfd, said, has_wheels, what, fix
):
    ends = "exit 1" if said else "kill -9 $$"
    (given / "said").write_text(f"cat <<'END'\n{said}END\n{ends}\n")
    if has_wheels:
        (given / "wheels").mkdir()
    with pytest.raises(SystemExit) as ended:
        in_image.install()
    assert str(ended.value) == f"error: {what}\n  fix: {fix}"
    wheels = "install --no-index --find-links wheels " if has_wheels else "install "
    assert printed(capfd) == " ".join(f"{ASKED.replace('install ', wheels)} {said}".split())


def printed(capfd: pytest.CaptureFixture[str]) -> str:
    return " ".join(capfd.readouterr().out.split())


NO_PIP = "error: the base image's PYTHON has no pip, and no venv fix: --base with pip (on Debian"
AGAIN = "/opt/launcher-venv/bin/python3 ['/opt/launcher-venv/bin/python3', 'in_image.py', 'all']"
MADE = f"{{'system_site_packages': True, 'with_pip': True}} {AGAIN}"


@pytest.mark.parametrize(
    ("has", "in_venv", "is_managed", "came"),
    [
        ({"pip"}, True, True, ASKED),
        ({"pip"}, False, False, ASKED),
        ({"pip", "venv", "ensurepip"}, False, True, MADE),
        ({"venv", "ensurepip"}, False, False, MADE),
        ({"venv", "ensurepip"}, True, False, f"-m ensurepip kept {ASKED}"),
        ({"venv"}, False, False, NO_PIP),
        ({"ensurepip"}, True, False, NO_PIP),
    ],
)
def test_pip_installs_where_the_bases_python_lets_it(
    given, capfd, monkeypatch, has, in_venv, is_managed, came
):
    def start(*words: object) -> None:
        print(*words)
        sys.exit()

    monkeypatch.setattr(in_image.venv, "create", lambda _, **how: print(how))
    monkeypatch.setattr(os, "execv", start)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in has else None)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: given)
    monkeypatch.setattr(sys, "prefix", "/an/environment" if in_venv else sys.base_prefix)
    monkeypatch.setattr(sys, "argv", ["in_image.py", "all"])
    if is_managed:
        (given / "EXTERNALLY-MANAGED").touch()
    try:
        in_image.install()
    except SystemExit as ended:
        print(ended.code or "")
    assert printed(capfd).replace(str(given / "python"), "PYTHON").startswith(came)


def test_an_ensurepip_that_fails_ends_the_step(given, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name != "pip" else None)
    (given / "said").write_text("exit 3")
    monkeypatch.chdir(given)
    with pytest.raises(subprocess.CalledProcessError):
        in_image.install()


def test_without_torch_in_the_image_nothing_is_held(given, capfd, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    in_image.install()
    assert printed(capfd) == ASKED.replace("torch==9.8.7+x ", "")


def test_a_python_that_is_too_old_for_the_agent_is_refused(given, monkeypatch):
    (given / "requirements.txt").unlink()
    monkeypatch.setattr(sys, "version_info", (3, 10))
    in_image.install()
    monkeypatch.setattr(sys, "version_info", (3, 9, 18, "final"))
    with pytest.raises(SystemExit) as ended:
        in_image.install()
    told = "error: the base image has Python 3.9.18\n  fix: --base with Python 3.10 or newer"
    assert str(ended.value) == told


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("class version: cuda = None\n__version__ = '2+cpu'", '{"torch": "2+cpu", "cuda": ""}'),
        ("class version: cuda = '12.1'\n__version__ = '2'", '{"torch": "2", "cuda": "12.1"}'),
        ("raise OSError('libcudart')", "error: torch cannot be imported in the image: "
         "OSError('libcudart')\n  fix: choose a --base in which torch can be imported\n"),
        (None, f"error: there is no torch for the image's {sys.executable}\n  fix: --base with "
         "torch, such as pytorch/pytorch; or name torch in the requirements\n"),
    ],
)  # fmt: skip
def test_the_image_is_asked_for_its_torch(tmp_path, module, told):
    if module is not None:
        (tmp_path / "torch.py").write_text(module)
    words = [sys.executable, "-S", in_image.__file__, "facts"]
    done = run_program(words, env={"PYTHONPATH": str(tmp_path)}, timeout=60)
    assert (done.stdout + done.stderr, done.returncode) == (told, told.startswith("error"))
