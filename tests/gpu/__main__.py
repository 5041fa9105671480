"""``make gpu``: runs what needs a GPU and writes docs/gpu.md. Standard library alone.

``python -m tests.gpu [NAME...]`` runs some cases and writes no page. GPU_DRY=1: the CPU stands in.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata, util
from pathlib import Path

from tests.gpu.cases import CASES, DRY, ROOT, SKIPPED, run_case

PAGE = ROOT / "docs/gpu.md"
PATIENCE = 4 if DRY else 1
LIMIT_S = 460.0 * PATIENCE
"""Of all cases, which is below 8 minutes with what stands around them; a CPU may be slow."""
NEEDED = {
    "torch": "torch",
    "lightning": "lightning",
    "torchmetrics": "torchmetrics",
    "jsonargparse": "jsonargparse",
    "sklearn": "scikit-learn",
    "pydantic": "pydantic",
    "yaml": "pyyaml",
    "pathspec": "pathspec",
}
VERSIONS = """
import platform, torch
print(platform.platform(), "| Python", platform.python_version(), "| torch", torch.__version__)
if torch.cuda.is_available():
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        kind = f"sm_{properties.major}{properties.minor}"
        print(f"{properties.name}, {properties.total_memory >> 20} MiB, {kind}")
    print("CUDA", torch.version.cuda, "| NCCL", ".".join(map(str, torch.cuda.nccl.version())))
"""
HEAD = """# What was run on a GPU

`make gpu` writes this page, within 8 minutes on one GPU. On a machine with another Python:
`make gpu GPU_PYTHON=python3 WHEELS=FOLDER`. It takes Python 3.11 and torch 2.4 with CUDA, or newer,
and no network. Packages that are missing come from the wheels in the folder, for this run alone.

"""
UNRUN = """

## Lines that never ran

No line of this project has met a GPU. A dry run leaves these out, as a CPU has no stand-in:

```text
{}
```

Functions with lines for CUDA or its driver, which have met nothing but stand-ins in tests:

```text
{}
```"""
BRANCH = re.compile(r"(?<!not )torch\.cuda\.|is_cuda|== \"(cuda|nccl)\"|nvml|nvidia_smi")


def find_missing() -> list[str]:
    """Packages that this Python lacks, by the names that pip knows."""
    return [name for module, name in NEEDED.items() if util.find_spec(module) is None]


def install_wheels(folder: str) -> None:
    """The wheels of WHEELS whose packages are not there, torch never."""
    held = {_plain(each.name) for each in metadata.distributions()} | {"torch"}
    found = sorted(Path(os.environ.get("WHEELS") or "wheelhouse").glob("*.whl"))
    wheels = [str(path) for path in found if _plain(path.name.split("-")[0]) not in held]
    if wheels:
        pip = (sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps")
        subprocess.run((*pip, "--target", folder, *wheels), check=False)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), folder)))
    sys.path.append(folder)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def run_limited(name: str, deadline: float) -> tuple[str, float, str]:
    """Passed, skipped or failed; its seconds; what it told."""
    began = time.monotonic()
    limit_s = min(CASES[name][1] * PATIENCE, deadline - began)
    if limit_s < 5:
        return "skipped", 0.0, f"no time left of {LIMIT_S:.0f} s"
    command = (sys.executable, "-m", "tests.gpu", "case", name)
    process = subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        # The launcher ends its nodes, which are sessions of their own.
        os.killpg(process.pid, signal.SIGTERM)
        try:
            out, err = process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        return "failed", time.monotonic() - began, f"not done within {limit_s:.0f} s"
    spent_s = time.monotonic() - began
    last = (out.strip().splitlines() or [""])[-1]
    if process.returncode == SKIPPED:
        return "skipped", spent_s, last
    if process.returncode:
        print(out[-3000:], err[-6000:], sep="\n", file=sys.stderr)
        return "failed", spent_s, (err.strip().splitlines() or ["no output"])[-1]
    return "passed", spent_s, last


def find_unrun() -> list[str]:
    """Lines for which the CPU has no stand-in."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    lines = [(file, n, line) for file in files for n, line in enumerate(file.open(), 1)]
    return [
        f"{file.relative_to(ROOT)}:{n}: {line.strip().removesuffix('# cuda').strip()}"
        for file, n, line in lines
        if line.rstrip().endswith(" # cuda")
    ]


def find_branches() -> list[str]:
    """The functions of the packages with lines for CUDA alone, by file."""
    found = []
    for room in ("fabric_train", "train", "launcher/agent", "launcher/doctor"):
        for file in sorted((ROOT / room).rglob("*.py")):
            function, names = "", []
            for line in file.open():
                function = named[1] if (named := re.match(r" *def (\w+)", line)) else function
                if BRANCH.search(line) and function not in ("", *names):
                    names.append(function)
            found += [f"{file.relative_to(ROOT)}: {', '.join(names)}"] if names else []
    return found


def render_page(machine: str, rows: list[tuple[str, str, float, str]]) -> str:
    """The page."""
    where = "No GPU yet: the CPU stood in for CUDA, and gloo for NCCL" if DRY else "The machine"
    table = [
        f"| {name} | {CASES[name][0].__doc__ or ''} | {state} | {spent_s:.0f} | {told} |".replace(
            "\n", " "
        )
        for name, state, spent_s, told in rows
    ]
    command = "GPU_DRY=1 make gpu" if DRY else "make gpu"
    parts = [HEAD, f"{where} (`{command}`):\n\n```text\n{machine}\n```\n\n"]
    parts += [
        "| case | what | result | seconds | told |\n|---|---|---|---|---|\n",
        "\n".join(table),
    ]
    if DRY:
        parts.append(UNRUN.format(*("\n".join(each()) for each in (find_unrun, find_branches))))
    return "".join(parts) + "\n"


def main(names: list[str]) -> int:
    """Runs cases; the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        if find_missing():
            install_wheels(folder)
        missing = find_missing()
        if "torch" in missing:
            print(
                "error: this Python has no torch\n  fix: make gpu GPU_PYTHON=python3",
                file=sys.stderr,
            )
            return 2
        machine = subprocess.run(
            (sys.executable, "-c", VERSIONS), capture_output=True, text=True, check=True
        ).stdout.strip()
        if not DRY and "CUDA" not in machine:
            print("error: torch sees no CUDA device\n  fix: GPU_DRY=1 make gpu", file=sys.stderr)
            return 2
        print(machine, f"missing: {', '.join(missing) or 'nothing'}", sep="\n", flush=True)
        deadline, rows = time.monotonic() + LIMIT_S, []
        for name in names or CASES:
            state, spent_s, told = run_limited(name, deadline)
            print(f"{state:8} {spent_s:5.1f} s  {name}: {told}", flush=True)
            rows.append((name, state, spent_s, told))
    if not names:
        PAGE.write_text(render_page(machine, rows))
        print(f"written: {PAGE.relative_to(ROOT)}")
    return int(any(state == "failed" for _, state, _, _ in rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["case"]:
        run_case(sys.argv[2])
    else:
        raise SystemExit(main(sys.argv[1:]))
