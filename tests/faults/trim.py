"""What a run left becomes a recording, without what nobody reads and this machine's names."""

import re
import shutil
import socket
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEFT_OUT = re.compile(
    r"code|agent\.pyz|code\.tar\.gz|artifact\.sh|\.kept|\.owner|checkpoints|keeper\.json"
)
"""Large, or of use to a run that goes on alone."""
MAX_BYTES = 24_000
"""Of a file; of a longer one the first and last halves are kept."""
IDS = {
    "/etc/machine-id": "0123456789abcdef0123456789abcdef",
    "/proc/sys/kernel/random/boot_id": "01234567-89ab-cdef-0123-456789abcdef",
}
FOLDER, VENV, PROJECT = "/home/me/project", "/opt/venv", "/opt/launcher"


def replace_paths(text: str, folder: Path | None = None) -> str:
    """The text as it would be on a machine of its own; ``folder`` is where the run was typed."""
    here = {sys.prefix: VENV, sys.base_prefix: "/usr/local", str(ROOT): PROJECT}
    if folder is not None:
        here = {str(folder): FOLDER, str(folder.parent): str(Path(FOLDER).parent)} | here
    for path, instead in here.items():
        text = text.replace(path, instead)
    for path, instead in IDS.items():
        text = (
            text.replace(Path(path).read_text().strip(), instead) if Path(path).exists() else text
        )
    for name, instead in machine_names().items():
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.[a-z])", instead, text)
    return text


def machine_names() -> dict[str, str]:
    """This machine's names and its address to the outside, and what stands for each."""
    names = {socket.gethostname(), socket.getfqdn()} - {"localhost"}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; the kernel chooses the address
            outer = {str(probe.getsockname()[0])} - {"127.0.0.1"}
        except OSError:
            outer = set()
    return dict.fromkeys(sorted(names), "machine-1") | dict.fromkeys(outer, "10.0.0.1")


def record(made: Path, recording: Path, folder: Path) -> None:
    """Puts what is to be kept of a folder or a file in the recording's place, which it replaces."""
    for old in (recording.parent / recording.stem, recording.parent / f"{recording.stem}.log"):
        shutil.rmtree(old, ignore_errors=True)
        old.unlink(missing_ok=True)
    recording.parent.mkdir(parents=True, exist_ok=True)
    if made.is_file():
        recording.write_text(trim_text(made, folder))
        return
    for path in sorted(made.rglob("*")):
        inner = path.relative_to(made)
        if any(map(LEFT_OUT.fullmatch, inner.parts)) or not path.is_file():
            continue
        if path.stat().st_size == 0 and path.name == "stdout":
            continue  # says nothing, and there is one for each rank
        target = recording / inner
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(trim_text(path, folder))


def trim_text(path: Path, folder: Path) -> str:
    """The file's text, shortened in its middle; bytes that are no text are replaced."""
    text = replace_paths(path.read_bytes().decode(errors="replace"), folder)
    if len(text) <= MAX_BYTES:
        return text
    head, tail = text[: MAX_BYTES // 2], text[-MAX_BYTES // 2 :]
    return f"{head}\n[... shortened for the corpus ...]\n{tail}"


def read_summary(log: Path, folder: Path) -> str:
    """What torchrun tells at its end, from the line of = signs on; without one, its last lines."""
    text = trim_text(log, folder)
    line = text.rfind("\n" + "=" * 60, 0, text.rfind("Root Cause"))
    return text[line + 1 :] if line >= 0 else text[-1500:]
