"""All benchmarks by name, and for how many seconds each may take more samples.

One is a function that gives ``Trial``s, and says how long each may take (docs/benchmarks.md has
these figures, and a test compares them).
"""

from __future__ import annotations

from benchmarks.again import agains
from benchmarks.command_line import answers, helps, renders
from benchmarks.containers import containers
from benchmarks.healing import healings
from benchmarks.hosts import hosts
from benchmarks.looking import looking
from benchmarks.manifests import manifests
from benchmarks.output import outputs
from benchmarks.own_script import own_scripts
from benchmarks.plan import plans
from benchmarks.recorder import recorders
from benchmarks.recovery import losses, recoveries
from benchmarks.rendezvous import rendezvous
from benchmarks.save import resumes, saves
from benchmarks.slurm import runs_on_slurm
from benchmarks.start import starts
from benchmarks.step import steps
from benchmarks.strategies import strategies
from benchmarks.trainer import trainers
from benchmarks.trials import Benchmark
from benchmarks.why import why

BENCHMARKS: dict[str, Benchmark] = {
    "start": Benchmark(trials=starts, limit_s=300),
    "own-script": Benchmark(trials=own_scripts, limit_s=180),
    "again": Benchmark(trials=agains, limit_s=120),
    "render": Benchmark(trials=renders, limit_s=60),
    "help": Benchmark(trials=helps, limit_s=60),
    "answers": Benchmark(trials=answers, limit_s=60),
    "plan": Benchmark(trials=plans, limit_s=60),
    "manifests": Benchmark(trials=manifests, limit_s=60),
    "output": Benchmark(trials=outputs, limit_s=180),
    "step": Benchmark(trials=steps, limit_s=120),
    "trainer": Benchmark(trials=trainers, limit_s=120),
    "recorder": Benchmark(trials=recorders, limit_s=120),
    "strategies": Benchmark(trials=strategies, limit_s=120),
    "save": Benchmark(trials=saves, limit_s=120),
    "resume": Benchmark(trials=resumes, limit_s=120),
    "recovery": Benchmark(trials=recoveries, limit_s=180),
    "losses": Benchmark(trials=losses, limit_s=240),
    "healing": Benchmark(trials=healings, limit_s=120),
    "containers": Benchmark(trials=containers, limit_s=120),
    "rendezvous": Benchmark(trials=rendezvous, limit_s=300),
    "hosts": Benchmark(trials=hosts, limit_s=300),
    "slurm": Benchmark(trials=runs_on_slurm, limit_s=300),
    "looking": Benchmark(trials=looking, limit_s=300),
    "why": Benchmark(trials=why, limit_s=60, pairs=2),
}
"""Names are what the command line takes and what docs/benchmarks.md explains, in this order."""
