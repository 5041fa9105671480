"""``examples/horovod_elastic.py``, slowed down, or with a worker that kills itself."""

from __future__ import annotations

import os
import runpy
import signal
import time
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
    time.sleep(float(os.environ.get("STEP_S", "0")))
    mine = os.environ["RANK"], str(sent)
    if mine == (os.environ.get("KILL_RANK"), os.environ.get("KILL_AT")) and not KILLED.exists():
        KILLED.write_text(os.environ["RANK"])
        os.kill(os.getpid(), signal.SIGKILL)
    send(bucket, *arguments)


optimizer.Bucket.send = send_or_die
load = hvd.elastic.TorchState.load_commit


def tell(state: hvd.elastic.TorchState, content: object) -> None:
    load(state, content)
    sampler = state.sampler
    print(f"continues {state.epoch} {sampler.processed_num} size {hvd.size()}", flush=True)


hvd.elastic.TorchState.load_commit = tell
torch.set_num_threads(1)
runpy.run_path(str(Path(__file__).parents[4] / "examples/horovod_elastic.py"), run_name="__main__")
