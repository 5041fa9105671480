"""A host loses its power, and the training on the others goes on as it is."""

import re
import threading
from pathlib import Path

import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.hosts
EXAMPLE = Path(__file__).parents[3] / "examples/heal_ddp.py"


def test_the_others_make_the_next_step_and_let_the_host_in_when_it_is_back(typist):
    typist.write(EXAMPLE.read_text().replace("STEPS = 1000", "STEPS = 1500"))
    launcher = typist.start("run", "job.yaml", "--nnodes", "2:3")
    host = typist.network.hosts[1]
    lines: list[bytes] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(launcher.stdout.readline, b"")))
    reader.start()

    def wait_for(text: str, count: int = 1) -> None:
        wait_until(
            lambda: b"".join(lines).count(text.encode()) >= count or launcher.poll() is not None,
            lambda: f"{text!r}: {lines[-20:]}",
        )

    wait_for("rank 0 of 3")
    wait_for("step 100 ")
    host.power_off()
    wait_for("rank 0 of 2")
    host.start()
    wait_for("rank 0 of 3", 2)
    assert launcher.wait(120) == 0, launcher.stderr.read()
    reader.join(10)
    steps = [int(number) for number in re.findall(rb"step (\d+) loss", b"".join(lines))]
    assert steps == list(range(1, 1501))
    assert typist.outcome["restarts"] == {}
