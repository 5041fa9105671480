"""Rules of training scripts about data: loaders, samplers, seeds, downloads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.manifests.checks.rules import Breaches
from launcher.manifests.scripts.ranks import (
    barriers,
    frameworks,
    is_guarded,
    rank_conditions,
    trains,
    words_of_ranks,
)
from launcher.manifests.scripts.reading import Script, argument, constant, is_open, shown
from launcher.manifests.scripts.rules import ScriptRule

LOADER = ("shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn")
"""Arguments of DataLoader behind the data set and the batch size, in their order."""
OWN_DATA = {
    *("lightning", "transformers", "composer", "ray", "ignite", "colossalai", "fastai"),
    *("mmengine", "torchtnt", "megatron"),
}
"""Libraries that split data over ranks by themselves, and call ``set_epoch``."""
SPAWNS = ("spawn", "forkserver")
SEED = "torch.manual_seed(SEED), from which loader workers get the seeds of numpy and random too"
DOWNLOADS = ("urllib.request.urlretrieve", "wget.download", "gdown.download")
HELD = re.compile(r"default_rng|RandomState|random\.Random|torch\.Generator")
RANDOM = re.compile(r"^(random|numpy\.random)\.(?!seed|default_rng|RandomState|Random$)\w+$")


def loaders(script: Script) -> list[ast.Call]:
    """The calls that make a DataLoader of torch, all of whose arguments are written out."""
    return [call for call in script.calls("DataLoader", "torch") if not is_open(call)]


def given(call: ast.Call, name: str) -> ast.expr | None:
    """An argument of a DataLoader."""
    return argument(call, name, LOADER.index(name) + 2)


def splits_data(script: Script) -> bool:
    """Whether a library splits the data of the loaders over ranks."""
    used = frameworks(script)
    return bool(
        used & OWN_DATA
        or ("accelerate" in used and script.called.get("prepare"))
        or ("fabric" in used and script.called.get("setup_dataloaders"))
        or script.calls("prepare_data_loader")
    )


def is_shuffled(call: ast.Call) -> bool:
    """Whether a loader shuffles, as far as that is written."""
    return constant(given(call, "shuffle")) is True


def trains_on(script: Script, call: ast.Call) -> bool:
    """Whether a loop that goes backward takes its batches from this loader."""
    for loop in script.loops:
        goes_back = any(getattr(one, "attr", "") == "backward" for one in ast.walk(loop))
        if goes_back and isinstance(loop, ast.For | ast.AsyncFor):
            if any(one is call for one in script.reach(loop.iter)):
                return True
    return False


def check_loader_without_sampler(script: Script) -> Breaches:
    """A loader for training whose batches are the same on every rank."""
    if splits_data(script) or not trains(script):
        return
    for call in loaders(script):
        samplers = (given(call, "sampler"), given(call, "batch_sampler"))
        if any(one is not None and not isinstance(one, ast.Constant) for one in samplers):
            continue
        data = argument(call, "dataset", 0)
        is_training = is_shuffled(call) or trains_on(script, call)
        if data is None or not is_training or _is_split(script, data):
            continue
        if _is_iterable(script, data):
            what = f"{shown(data)} is an IterableDataset that knows no rank"
            fix = "in __iter__: itertools.islice(rows, rank, None, world_size), and loader workers"
        else:
            what = f"{shown(call)} without a distributed sampler"
            fix = "sampler=DistributedSampler(dataset), and shuffle=False"
        yield from script.hit(ScriptRule.LOADER_WITHOUT_SAMPLER, call, what, fix)


def _is_split(script: Script, data: ast.expr) -> bool:
    """Whether the data set, or the class of it, has to do with ranks."""
    parts: list[ast.AST] = [data, *_classes(script, data)]
    for one in (node for part in parts for node in script.reach(part, 3)):
        name = script.name(one)
        if name.endswith(("split_dataset_by_node", ".shard", "get_world_size", "world_size")):
            return True
    return any(words_of_ranks(script, part) for part in parts)


def _classes(script: Script, data: ast.expr) -> list[ast.ClassDef]:
    """The classes of this script that an expression makes objects of."""
    made = {script.name(one.func) for one in script.reach(data) if isinstance(one, ast.Call)}
    return [one for one in script.classes if one.name in made]


def _is_iterable(script: Script, data: ast.expr) -> bool:
    bases = (base for one in _classes(script, data) for base in script.bases(one))
    return any(base.endswith("IterableDataset") for base in bases)


def check_sampler_with_shuffle(script: Script) -> Breaches:
    """A sampler and ``shuffle=True`` in one loader."""
    for call in loaders(script):
        sampler = given(call, "sampler")
        if sampler is not None and not isinstance(sampler, ast.Constant) and is_shuffled(call):
            what = f"sampler={shown(sampler)} and shuffle=True"
            fix = "leave out shuffle: DistributedSampler shuffles, and set_epoch gives each epoch its order"
            yield from script.hit(ScriptRule.SAMPLER_WITH_SHUFFLE, call, what, fix)


def check_no_set_epoch(script: Script) -> Breaches:
    """A distributed sampler that shuffles, in a training of epochs that never tells it the epoch."""
    epochs = [loop for loop in script.loops if "epoch" in shown(getattr(loop, "target", loop))]
    if script.called.get("set_epoch") or not epochs or not trains(script) or splits_data(script):
        return
    for call in script.calls("DistributedSampler", "torch"):
        shuffle = argument(call, "shuffle", 3)
        if (shuffle is None or constant(shuffle) is True) and not is_open(call):
            what = f"{shown(call)}, and set_epoch is never called"
            fix = "sampler.set_epoch(epoch) at the start of each epoch"
            yield from script.hit(ScriptRule.NO_SET_EPOCH, call, what, fix)


# -- loader workers -------------------------------------------------------------------------------


def _has_workers(call: ast.Call) -> bool:
    return constant(given(call, "num_workers")) != 0 and given(call, "num_workers") is not None


def check_worker_seeds(script: Script) -> Breaches:
    """Random numbers of a data set that loader workers repeat, or that no seed reaches."""
    for call in loaders(script):
        data = argument(call, "dataset", 0)
        if data is None or not _has_workers(call) or argument(call, "worker_init_fn") is not None:
            continue
        for one in _classes(script, data):
            yield from _check_held(script, one)
            yield from _check_unseeded(script, one)


def _check_held(script: Script, one: ast.ClassDef) -> Breaches:
    """A generator made with the data set: each worker has a copy, with the same numbers."""
    starts = [f for f in one.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"]
    for node in (node for start in starts for node in ast.walk(start)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            name = shown(node.targets[0])
            is_held = name.startswith("self.") and HELD.search(script.name(node.value.func))
            if is_held and _draws(script, one, name):
                what = f"{name} is copied into each loader worker, with its state"
                fix = "worker_init_fn= that makes one from torch.initial_seed()"
                yield from script.hit(ScriptRule.WORKER_SEEDS, node, what, fix)


def _draws(script: Script, one: ast.ClassDef, name: str) -> bool:
    """Whether samples are made with that generator."""
    for function in _of_samples(one):
        names = [script.name(node) for node in ast.walk(function)]
        if any(other.startswith(f"{name}.") for other in names):
            return True
    return False


def _of_samples(one: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """The methods that run in loader workers."""
    for function in one.body:
        if isinstance(function, ast.FunctionDef) and function.name != "__init__":
            yield function


def _check_unseeded(script: Script, one: ast.ClassDef) -> Breaches:
    seeds = [c for c in script.called.get("seed", ()) if script.root(c) in ("random", "numpy")]
    others = ("manual_seed", "seed_everything", "set_seed", "seed_all", "manual_seed_all")
    if not seeds or any(script.called.get(name) for name in others):
        return
    for node in (node for function in _of_samples(one) for node in ast.walk(function)):
        if isinstance(node, ast.Call) and RANDOM.match(script.name(node.func)):
            what = f"{shown(seeds[0])} seeds this process, and {shown(node)} runs in loader workers"
            yield from script.hit(ScriptRule.WORKER_SEEDS, seeds[0], what, SEED)
            return


def check_pickled_function(script: Script) -> Breaches:
    """Lambdas and local functions that go to a process which is spawned."""
    for call in script.calls("spawn", "torch"):
        yield from _check_local(script, call, argument(call, "fn", 0))
    is_spawned = any(
        constant(argument(call, "method", 0)) in SPAWNS
        for call in (*script.calls("set_start_method"), *script.calls("get_context"))
    )
    for call in loaders(script):
        context = constant(argument(call, "multiprocessing_context"))
        if _has_workers(call) and (is_spawned or context in SPAWNS):
            for one in (given(call, "collate_fn"), argument(call, "worker_init_fn")):
                yield from _check_local(script, call, one)
            for made in script.reach(argument(call, "dataset", 0) or call):
                if isinstance(made, ast.Call) and script.name(made.func).endswith(".Lambda"):
                    yield from _check_local(script, made, argument(made, "lambd", 0))


def _check_local(script: Script, call: ast.Call, given: ast.expr | None) -> Breaches:
    is_lambda = isinstance(given, ast.Lambda)
    if isinstance(given, ast.Name):
        made = script.functions.get(given.id, ())
        is_lambda = any(
            script.function_of(one) is not None for one in made if not script.class_of(one)
        )
        is_lambda |= any(isinstance(one, ast.Lambda) for one in script.values(given))
    if is_lambda and given is not None:
        what = f"{shown(given)} goes to a spawned process"
        fix = "a function at the top of the script (functools.partial for its arguments)"
        yield from script.hit(ScriptRule.PICKLED_FUNCTION, call, what, fix)


# -- downloads ------------------------------------------------------------------------------------


def _downloads(script: Script) -> Iterator[tuple[ast.Call, bool]]:
    """The calls that download, and whether the call itself asks for the rank."""
    for calls in script.called.values():
        for call in calls:
            asked = argument(call, "download")
            is_data = asked is not None and script.root(call) in (
                "torchvision",
                "torchaudio",
                "torchtext",
            )
            if is_data and constant(asked) is True:
                yield call, False
            elif is_data and asked is not None and rank_asked(script, asked):
                yield call, True
            elif script.name(call.func) in DOWNLOADS:
                yield call, False


def rank_asked(script: Script, node: ast.expr) -> bool:
    """Whether a value is a condition on the rank."""
    return not isinstance(node, ast.Constant) and words_of_ranks(script, node)


def check_download(script: Script) -> Breaches:
    """A download by every rank, or by one rank for which the others do not wait."""
    if not trains(script):
        return
    for call, asks in sorted(_downloads(script), key=lambda one: one[0].lineno):
        function = script.function_of(call)
        waits = [one for one in barriers(script) if script.function_of(one) is function]
        if function is not None and function.name == "prepare_data":
            continue
        if asks or is_guarded(script, call):
            if not frameworks(script) and not any(_waited(script, call)):
                what = f"{shown(call)} by some ranks, and no barrier after it"
                fix = "dist.barrier() after it, on all ranks"
                yield from script.hit(ScriptRule.DOWNLOAD_WITHOUT_BARRIER, call, what, fix)
        # if rank != 0: barrier(); download; if rank == 0: barrier()
        elif not any(one.lineno < call.lineno and rank_conditions(script, one) for one in waits):
            fix = "if local_rank == 0: download, then dist.barrier(), then download=False for all"
            yield from script.hit(
                ScriptRule.DOWNLOAD_BY_ALL, call, f"{shown(call)} by every rank", fix
            )


def _waited(script: Script, call: ast.AST) -> Iterator[bool]:
    """Whether ranks wait for each other after a call, in its function or after that one's calls."""
    for at in (call, *script.callers(call)):
        function = script.function_of(at)
        names = script.contexts(at)
        yield any("first" in name for name in names)
        yield any(
            one.lineno > at.lineno and script.function_of(one) is function  # type: ignore[attr-defined]
            for one in barriers(script)
        )
