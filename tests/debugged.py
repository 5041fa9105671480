"""A person at a terminal who debugs a rank, and the script that is debugged."""

import fcntl
import os
import pty
import subprocess
import termios
import threading

from tests.launcher.runner import Runner
from tests.waiting import wait_until

STOPS = """
import datetime, os
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
secret = torch.tensor([40 + dist.get_rank()])
breakpoint()
dist.all_reduce(secret)
print("sum", int(secret), flush=True)
for left in (1, 0):
    breakpoint()
dist.barrier()
print("over", flush=True)
dist.destroy_process_group()
"""
"""Its groups wait for two seconds. Rank 1 sees 41 at its first breakpoint."""


class Terminal:
    """``launcher`` in a pseudo terminal; what it shows is kept as ``text``."""

    def __init__(self, launcher: Runner, *argv: str) -> None:
        self._own, theirs = pty.openpty()
        self.text = ""
        self._process = subprocess.Popen(
            launcher.argv(*argv),
            cwd=launcher.folder,
            env=launcher.env | {"NO_COLOR": "1"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            start_new_session=True,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._own, 4096):
                self.text += data.decode(errors="replace")
        except OSError:
            return  # the other side is closed

    def wait(self, text: str, count: int = 1) -> None:
        """Until it has shown the text so many times."""
        try:
            wait_until(lambda: self.text.count(text) >= count, lambda: f"{text!r} in:\n{self.text}")
        except AssertionError:
            self._process.kill()
            raise

    def type(self, line: str) -> None:
        """A line, with its end."""
        os.write(self._own, f"{line}\n".encode())

    def press(self, key: str) -> None:
        """A single key."""
        os.write(self._own, key.encode())

    def finish(self) -> int:
        """The exit code, once it has ended."""
        code = self._process.wait(120)
        self._reader.join(10)
        os.close(self._own)
        return code


def debug_rank_1(launcher: Runner, *words: str) -> None:
    """Stops, looks, changes a value while the other rank waits for long, and goes on to the end."""
    terminal = Terminal(launcher, "run", *words, "--debug", "1")
    terminal.wait("-> dist.all_reduce(secret)")
    terminal.wait("(Pdb) ")
    terminal.type("p secret")
    terminal.wait("tensor([41])")
    # The other rank waits in the collective for longer than its group's limit.
    terminal.type("!import time; time.sleep(4); secret += 9; print('changed', secret)")
    terminal.wait("changed tensor([50])")
    terminal.type("c")
    terminal.wait("sum 90", 2)
    # Meanwhile programs run beside it in all nodes.
    done = launcher("exec", "latest", "--", "sh", "-c", "echo here; echo there >&2; exit 3")
    assert done.returncode == 3, done.stderr
    wanted = [f"[{node}] {word}" for node in (0, 1) for word in ("here", "there")]
    assert sorted(done.stdout.splitlines()) == wanted, done.stderr
    assert done.stderr == "node 0: exit code 3\nnode 1: exit code 3\n"
    terminal.type("p left")
    terminal.type("c")
    terminal.wait("(Pdb) ", 4)
    terminal.type("p left - 1")
    terminal.wait("-1")
    # Ctrl-D leaves pdb as well.
    terminal.press("\x04")
    assert terminal.finish() == 0, terminal.text
    assert terminal.text.count("over") == 2, terminal.text
