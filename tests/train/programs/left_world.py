"""Trains three steps and tells whether the wrapped model is gone when the world is to be left."""

import gc
import os
import weakref

import train.loop
from fabric_train.launch.fabric import leave_world
from fabric_train.loop.ledger import open_ledger
from fabric_train.worker_env import parse_worker_env
from train.config import parse_config

models = []
build = train.loop.build


def build_watched(*arguments):
    """The run, its model watched without being held."""
    run = build(*arguments)
    models.append(weakref.ref(run.strategy.model))
    return run


# Without the collector only what nothing refers to any more is freed, as it must be here.
gc.disable()
train.loop.build = build_watched
config = parse_config(["--max_steps", "3", "--checkpoint_dir", "checkpoints"])
env = parse_worker_env(os.environ)
train.loop.train_in_worlds(config, env, open_ledger(env), "fit")
print(f"models left: {sum(model() is not None for model in models)} of {len(models)}\n", end="")
leave_world()
