"""Packs the agent into one file that runs in any image with Python and torch.

``python -m launcher.targets.agent_archive >FILE`` writes it by hand, with ``--compiled`` for nodes
that have the same Python; ``--version`` prints which agent it is. Standard library only: the image
is built with it.

In the archive the package has a private name: a user's folders called ``launcher`` or ``train``
cannot shadow it or be shadowed. Without bytecode, equal sources give equal bytes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import io
import marshal
import os
import re
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

PACKAGE = "launcher"
_LAUNCHER = Path(__file__).parents[1]
PRIVATE_PACKAGE = "_launcher_node"

AGENT_FOLDER = "agent"
# Patterns: parsing all sources before every start would take ten times as long.
_FROM_IMPORT = rf"(?m)^([ \t]*)from {PACKAGE}(?=[. ])"
_PLAIN_IMPORT = rf"(?m)^[ \t]*import {PACKAGE}\b.*"
HOST_FOLDER = "targets/hosts/program"
HOST_NAMES = (
    *("agent/__init__.py", "agent/addresses.py", "agent/atomic_write.py", "agent/disk.py"),
    *("contract/__init__.py", "contract/protocol.py"),
    *("contract/process_stat.py", "contract/waits.py"),
    *("targets/__init__.py", "targets/machine.py", "targets/process_table.py"),
    *("targets/held/__init__.py", "targets/held/child.py", "targets/hosts/__init__.py"),
    *("targets/subprocesses/__init__.py", "targets/subprocesses/children.py"),
    "targets/subprocesses/short_command.py",
)


_MAIN = f"""\
import sys

from {PRIVATE_PACKAGE}.{{folder}}.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
"""


@functools.cache
def read_archive() -> bytes:
    """This version's agent."""
    return render_agent_archive(read_agent_sources())


@functools.cache
def read_compiled_archive() -> bytes:
    """This version's agent with this Python's bytecode in it; other Pythons ignore the bytecode.

    Compiling takes as long as everything else before a worker starts. So the archive is cached
    where Python caches this module's bytecode, if this process may write there.
    """
    kept = Path(importlib.util.cache_from_source(f"{__file__[:-3]}_packed.py"))
    version = read_agent_version().encode()
    with contextlib.suppress(OSError):
        if (data := kept.read_bytes()).endswith(version):
            return data[: -len(version)]
    data = render_agent_archive(read_agent_sources(), bytecode=True)
    if not sys.dont_write_bytecode:
        temporary = kept.with_name(f"{kept.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            temporary.write_bytes(data + version)
            temporary.replace(kept)
    return data


@functools.cache
def read_agent_version() -> str:
    """A hash of the agent's sources: the same wherever the archive was made."""
    # Not a hash of the archive: machines compress the same files to different bytes.
    text = "\0".join(f"{path}\0{text}" for path, text in sorted(read_agent_sources().items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_agent_sources() -> dict[str, str]:
    """The sources that go into the archive, by path inside the package."""
    return _read_sources((), "contract", AGENT_FOLDER)


def read_host_sources() -> dict[str, str]:
    """The sources of the program that hosts run for the launcher, by path inside the package."""
    return _read_sources(HOST_NAMES, HOST_FOLDER)


def _read_sources(names: tuple[str, ...], *folders: str) -> dict[str, str]:
    paths = [_LAUNCHER / name for name in names]
    paths += [path for folder in folders for path in sorted((_LAUNCHER / folder).rglob("*.py"))]
    sources = {path.relative_to(_LAUNCHER).as_posix(): path.read_text() for path in paths}
    # The package's own ``__init__.py`` is for people's imports, not for nodes.
    return {"__init__.py": "", **sources}


def render_agent_archive(
    sources: Mapping[str, str],
    folder: str = AGENT_FOLDER,
    *,
    bytecode: bool = False,
) -> bytes:
    """A zipapp of ``sources`` under the private name, which runs ``folder``'s main. Pure.

    It has no comment: before 3.8 Python finds no archive that has one.
    """
    files: dict[str, str | bytes] = {
        f"{PRIVATE_PACKAGE}/{path}": rename(text) for path, text in sources.items()
    }
    files["__main__.py"] = _MAIN.format(folder=folder.replace("/", "."))
    if bytecode:
        files |= {f"{path}c": _compile(text, path) for path, text in files.items()}
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files):
            info = zipfile.ZipInfo(path, date_time=(1980, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, files[path])
    return output.getvalue()


def _compile(source: str | bytes, path: str) -> bytes:
    """The bytes of a ``.pyc`` file, with a header that tells Python not to check the source.

    An interpreter that does not know the header's magic number compiles the source instead.
    """
    unchecked = (1).to_bytes(4, "little") + bytes(8)
    return importlib.util.MAGIC_NUMBER + unchecked + marshal.dumps(compile(source, path, "exec"))


def rename(source: str) -> str:
    """The module with its imports of the package changed to the private name.

    Raises ValueError for ``import launcher.x``: the module then uses the name ``launcher``.
    """
    if match := re.search(_PLAIN_IMPORT, source):
        raise ValueError(f"{match[0].strip()!r}: use `from {PACKAGE}... import ...`")
    return re.sub(_FROM_IMPORT, rf"\1from {PRIVATE_PACKAGE}", source)


if __name__ == "__main__":
    version = f"{read_agent_version()}\n".encode()
    made = read_compiled_archive if "--compiled" in sys.argv[1:] else read_archive
    sys.stdout.buffer.write(version if "--version" in sys.argv[1:] else made())
