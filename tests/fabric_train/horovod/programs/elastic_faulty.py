"""``examples/horovod_elastic.py``, one worker of which kills itself once, in a backward pass."""

from __future__ import annotations

import os
import runpy
import signal
from pathlib import Path

import torch

import fabric_train.horovod as hvd
from fabric_train.horovod import optimizer

KILLED = Path(os.environ["RUN_DIR"]) / "killed"
sent = 0
send = optimizer.Bucket.send


def send_or_die(bucket: optimizer.Bucket, *arguments: object) -> None:
    global sent
    sent += 1
    is_it = (os.environ["RANK"], str(sent)) == (os.environ["KILL_RANK"], os.environ["KILL_AT"])
    if is_it and not KILLED.exists():
        KILLED.write_text(os.environ["RANK"])
        os.kill(os.getpid(), signal.SIGKILL)
    send(bucket, *arguments)


optimizer.Bucket.send = send_or_die
load = hvd.elastic.TorchState.load_commit


def tell(state: hvd.elastic.TorchState, content: object) -> None:
    load(state, content)
    done = state.epoch * 22 + state.sampler.processed_num // 64
    print(f"continues after batch {done}", flush=True)


hvd.elastic.TorchState.load_commit = tell
torch.set_num_threads(1)
runpy.run_path(str(Path(__file__).parents[4] / "examples/horovod_elastic.py"), run_name="__main__")
