"""``examples/horovod_elastic.py``, slowed down."""

import os
import runpy
import time
from pathlib import Path

import torch

import fabric_train.horovod as hvd
from fabric_train.horovod import optimizer

send = optimizer.Bucket.send


def send_slowly(bucket: optimizer.Bucket, *arguments: object) -> None:
    time.sleep(float(os.environ.get("STEP_S", "0")))
    send(bucket, *arguments)


optimizer.Bucket.send = send_slowly
load = hvd.elastic.TorchState.load_commit


def tell(state: hvd.elastic.TorchState, content: object) -> None:
    load(state, content)
    sampler = state.sampler
    print(f"continues {state.epoch} {sampler.processed_num} size {hvd.size()}", flush=True)


hvd.elastic.TorchState.load_commit = tell
torch.set_num_threads(1)
runpy.run_path(str(Path(__file__).parents[4] / "examples/horovod_elastic.py"), run_name="__main__")
