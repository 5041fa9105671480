"""``python docs/record.py``: records a run that loses a node, as docs/recording.svg.

Two nodes of local processes train; all processes of node 1 are killed in the middle. Each line of
the picture appears when the run printed it, behind the seconds since the command. Pauses longer
than ``LONGEST_PAUSE_S`` are cut, and so are long lines and the inner lines of tracebacks.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, NamedTuple
from xml.sax.saxutils import escape

import psutil

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/recording.svg"
COMMAND = "launcher run train.py --nnodes 1:2 --nproc-per-node 1"
KILL_AT = "step 16 "
LONGEST_PAUSE_S = 2.0
COLUMNS = 100
SCRIPT = """
import time
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from fabric_train import Worlds

torch.manual_seed(0)
model = nn.Linear(20, 1)
optimizer = torch.optim.AdamW(model.parameters())
inputs = torch.randn(64, 20)
for world in (worlds := Worlds()):  # launcher: ignore[no-checkpoint]
    with world:
        world.share(model, optimizer)
        replica = DistributedDataParallel(model, init_sync=False)
        print(f"rank {world.rank} of {world.env.world_size}", flush=True)
        while (step := worlds.step or 0) < 64:
            with world.step():
                loss = (replica(inputs) - 1).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if world.rank == 0 and step % 4 == 3:
                print(f"step {step + 1} loss {loss:.4f}", flush=True)
            time.sleep(0.1)
"""
INNER = re.compile(r"\[rank\d+\]:(   |.*Traceback)|^ +(outcome|logs|report|checkpoints) ")
"""Lines that are left out: the inside of tracebacks, and where files lie."""
GROUND, TEXT, TYPED, TOLD, KILLED = "#14181f", "#d5dae2", "#7fd4a0", "#8fb4e8", "#f0907f"
CLOCK = "#8a93a3"


class Line(NamedTuple):
    """One line of the terminal, ``at`` seconds after the command."""

    at: float
    text: str
    colour: str


def record(folder: Path) -> list[Line]:
    """What a run in ``folder`` prints, with the moment at which node 1 is killed."""
    (folder / "train.py").write_text(SCRIPT)
    program = Path(sys.executable).with_name("launcher")
    path = f"{program.parent}:{os.environ['PATH']}"  # so that messages say `launcher`
    # No engine: it has no part in this, and may hold runs of others, which would be told.
    env = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path, "DOCKER_HOST": "unix:///none"}
    start = time.monotonic()
    run = subprocess.Popen(
        [program, *COMMAND.split()[1:]],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    assert run.stderr is not None
    printed: queue.Queue[Line | None] = queue.Queue()
    readers = [
        threading.Thread(target=read, args=(stream, colour, start, printed))
        for stream, colour in ((run.stdout, TEXT), (run.stderr, TOLD))
    ]
    for reader in readers:
        reader.start()
    lines = [Line(0, f"$ {COMMAND}", TYPED)]
    ended = 0
    while ended < len(readers):
        line = printed.get(timeout=300)
        if line is None:
            ended += 1
            continue
        lines.append(line)
        if KILL_AT in line.text:
            now = time.monotonic() - start
            kill_node(folder, "1")
            lines.append(Line(now, "# kill -9 of all processes of node 1, from elsewhere", KILLED))
    for reader in readers:
        reader.join()
    if run.wait(60):
        raise SystemExit(f"error: the run ended with exit code {run.returncode}")
    return sorted(lines, key=lambda line: line.at)


def read(stream: IO[str], colour: str, start: float, into: queue.Queue[Line | None]) -> None:
    """Puts each line of a stream, and None at its end."""
    for text in stream:
        into.put(Line(time.monotonic() - start, text.rstrip("\n"), colour))
    into.put(None)


def kill_node(folder: Path, index: str) -> None:
    """SIGKILL to the node's agent and all below it."""
    task = f"nodes/{index}/0/node-plan.json"
    agents = [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(process.info["cmdline"] or ())
        and task in " ".join(process.info["cmdline"])
    ]
    for agent in agents:
        for process in (*agent.children(recursive=True), agent):
            if process.is_running():
                process.kill()


def shown(text: str, folder: Path) -> str:
    """A line without this machine's folders, cut to the width of the picture."""
    text = text.replace(f"{folder}/", "").replace(str(folder), ".")
    text = re.sub(r"/\S*/bin/(python)[0-9.]*", r"\1", text)
    return text if len(text) <= COLUMNS else f"{text[: COLUMNS - 4]} ..."


def render(lines: list[Line], folder: Path) -> str:
    """The picture. Without animation, as in print, all lines are there."""
    rows: list[str] = []
    now, before = 0.6, 0.0
    for at, text, colour in lines:
        if INNER.search(text):
            continue
        now, before = now + min(at - before, LONGEST_PAUSE_S), at
        y = 26 + 19 * len(rows)
        clock = f'<tspan fill="{CLOCK}">{at:6.1f} s  </tspan>'
        rows.append(
            f'<text x="12" y="{y}" fill="{colour}" style="animation-duration:{now:.2f}s">'
            f"{clock}{escape(shown(text, folder))}</text>"
        )
    width, height = 24 + 8.45 * (COLUMNS + 10), 26 + 19 * len(rows)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img"'
            ' aria-label="Node 1 of two is killed, the steps of the other go on, a new one joins">',
            "<style>text{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre;"
            "animation:wait 0s step-end}@keyframes wait{from,to{opacity:.3}}"
            "@media (prefers-reduced-motion:reduce){text{animation:none}}</style>",
            f'<rect width="100%" height="100%" rx="8" fill="{GROUND}"/>',
            *rows,
            "</svg>\n",
        ]
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        PICTURE.write_text(render(record(folder), folder))
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
