"""Runs as a step of ``launcher build`` in the image: installs the requirements, or reads torch.

Standard library only. An error is printed in two lines, ``error:`` and ``fix:``, which the
launcher repeats.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import NoReturn

GIVEN = Path(__file__).parent
"""Mounted for the step alone: this file, ``requirements.txt`` and ``wheels``."""
VENV = "/opt/launcher-venv"
"""First on the image's PATH. It is made where pip must not install into the base's Python."""
OLDEST = (3, 10)
"""The oldest Python in which the node agent runs."""
PIP = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_PROGRESS_BAR": "off",
    "PIP_ROOT_USER_ACTION": "ignore",
}
NO_INDEX = re.compile(r"connection broken by '(.*)': /|Could not fetch URL \S+ (.*)")
"""What pip says where it cannot reach its index."""
NOT_TRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED\] ([^()\n]*[^()\n ])")
"""What pip says where the image does not know the CA of its index."""
OTHER_TORCH = re.compile(r"^ +(?!.*\(constraint\))(.* (?:depends on|requested) torch\b.*)", re.M)
HELD_TORCH = re.compile(r"\(constraint\) torch[<=>!~]")
"""What pip says of a torch that may not be another; the image's own pip may add to it."""
WHEELS_FIX = "pip download -r FILE -d wheels, where there is a network; then --wheelhouse wheels"
LINE = 200
"""How many characters of pip's error are shown."""


def fail(what: str, fix: str) -> NoReturn:
    """Ends the step."""
    sys.exit(f"error: {what}\n  fix: {fix}")


def install() -> None:
    """Installs the requirements. The torch that is there stays as it is."""
    if sys.version_info < OLDEST:
        version = ".".join(map(str, sys.version_info[:3]))
        fail(f"the base image has Python {version}", "--base with Python 3.10 or newer")
    if not (GIVEN / "requirements.txt").exists():
        return
    _enter_venv()
    torch = _installed("torch")
    with tempfile.TemporaryDirectory() as folder:
        held = Path(folder, "torch.txt")
        held.write_text(f"torch=={torch}\n" if torch else "")
        _pip_install(torch, "--constraint", str(held))


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _enter_venv() -> None:
    """If pip may not install here, starts again in a venv that sees the base's packages."""
    marker = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    has_pip = importlib.util.find_spec("pip") is not None
    if has_pip and (sys.prefix != sys.base_prefix or not marker.exists()):
        return
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        fix = "--base with pip (on Debian and Ubuntu: apt-get install python3-venv in it)"
        fail(f"the base image's {sys.executable} has no pip, and no venv", fix)
    if sys.prefix != sys.base_prefix:
        # Ended by whoever builds the image; ensurepip uses no network.
        subprocess.run((sys.executable, "-m", "ensurepip"), check=True)
        return
    venv.create(VENV, system_site_packages=True, with_pip=True)
    os.execv(f"{VENV}/bin/python3", [f"{VENV}/bin/python3", *sys.argv])


def _pip_install(torch: str, *more: str) -> None:
    """Runs pip, and prints what it says line by line."""
    wheels = GIVEN / "wheels"
    source = ("--no-index", "--find-links", str(wheels)) if wheels.exists() else ()
    line = (sys.executable, "-m", "pip", "install", *source, *more, "-r", "requirements.txt")
    process = subprocess.Popen(
        line,
        cwd=GIVEN,
        env={**os.environ, **PIP},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    output = ""
    for text in process.stdout or ():
        sys.stdout.write(text)
        sys.stdout.flush()
        output += text
    # Ended by pip, whose output has ended above.
    if process.wait() != 0:
        _explain(output, torch, has_wheels=bool(source))


def _explain(output: str, torch: str, *, has_wheels: bool) -> None:
    """Ends the step with the cause that pip's output tells."""
    errors = re.findall(r"^ERROR: (.*)", output, re.M) or ["it says nothing"]
    if HELD_TORCH.search(output) and (wanted := OTHER_TORCH.findall(output)):
        fix = "leave torch out of the requirements, or --base with the torch that they want"
        what = f"the requirements want another torch than the base image's {torch}"
        fail(f"{what}: {wanted[0].strip()}", fix)
    if refused := NOT_TRUSTED.findall(output):
        what = "pip does not trust the certificate of its index"
        fix = "a base image that holds your CA's certificate (launcher docs behind-a-firewall)"
        fail(f"{what}: {refused[-1][:LINE]}", f"{fix}; or {WHEELS_FIX}")
    if broken := NO_INDEX.findall(output):
        reason = "".join(broken[-1])[:LINE]
        fail(f"pip does not reach its index from the build: {reason}", WHEELS_FIX)
    fix = "correct the requirements; what pip printed stands above"
    if has_wheels and "No matching distribution" in errors[-1]:
        version = ".".join(map(str, sys.version_info[:2]))
        fix = f"put it into the folder of --wheelhouse, for the image's Python {version}"
    fail(f"pip cannot install the requirements: {errors[-1][:LINE]}", fix)


def facts() -> None:
    """Prints what torch says of itself, as JSON."""
    if importlib.util.find_spec("torch") is None:
        fix = "--base with torch, such as pytorch/pytorch; or name torch in the requirements"
        fail(f"there is no torch for the image's {sys.executable}", fix)
    try:
        import torch

        versions = {"torch": torch.__version__, "cuda": torch.version.cuda or ""}
    except Exception as error:
        fix = "choose a --base in which torch can be imported"
        fail(f"torch cannot be imported in the image: {error!r}", fix)
    sys.stdout.write(json.dumps(versions))


if __name__ == "__main__":
    {"install": install, "facts": facts}[sys.argv[1]]()
