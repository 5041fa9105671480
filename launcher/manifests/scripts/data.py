"""Rules of training scripts about files and data: loaders, seeds, downloads, checkpoints."""

from __future__ import annotations

import ast
import re
from pathlib import Path, PurePath

from launcher.manifests.checks.rules import Breaches
from launcher.manifests.scripts.ranks import TrainingScript
from launcher.manifests.scripts.reading import DEPTH, argument, constant, is_open, shown
from launcher.manifests.scripts.rules import ScriptRule

LOADER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers",
          "collate_fn")  # fmt: skip
"""The first parameters of DataLoader, in their order."""
HANDS_OVER = {"accelerate": "prepare", "fabric": "setup_dataloaders", "deepspeed": "deepspeed_io"}
"""Libraries that split only the data of loaders that are passed to the named call."""
SEEDS = ("manual_seed", "seed_everything", "set_seed", "seed_all", "manual_seed_all")
HELD = re.compile(r"default_rng|RandomState|random\.Random|torch\.Generator")
RANDOM = re.compile(r"(random|numpy\.random)\.(?!seed|default_rng|RandomState|Random$)\w+")
SPAWNS = ("spawn", "forkserver")
DOWNLOADS = ("urllib.request.urlretrieve", "wget.download", "gdown.download")
SAVES = re.compile(r"save|checkpoint|commit|Continuity", re.I)
CLOCK = re.compile(r"(datetime|date)\.(now|utcnow|today)$|^time\.(time|strftime)$|uuid[14]$")
MOST_CONFIGURATIONS = 50
"""So many YAML files beside a script are searched for the name of Hydra's folder."""
HYDRA_FOLDER = re.compile(
    r"hydra\.run\.dir|^hydra:.*?\n +run:\s*\n +dir: (?!.*\$\{now)", re.DOTALL | re.MULTILINE
)
LOADS = re.compile(
    r"resume|restore|load_?(latest_|last_)?(checkpoint|ckpt|state|snapshot)|(torch|fabric)\.load$"
    r"|checkpoint\.load|elastic",
    re.I,
)


def loaders(script: TrainingScript) -> list[ast.Call]:
    """The calls that make a DataLoader of torch, all of whose arguments are written out."""
    return [call for call in script.calls("DataLoader", "torch") if not is_open(call)]


def given(call: ast.Call, name: str) -> ast.expr | None:
    """An argument of a DataLoader, None where it is left out or a literal None."""
    value = argument(call, name, LOADER.index(name))
    return None if isinstance(value, ast.Constant) and value.value is None else value


def splits_data(script: TrainingScript) -> bool:
    """Whether a library splits the data of the loaders over ranks, and counts the epochs."""
    used = script.frameworks
    return any(name not in HANDS_OVER or HANDS_OVER[name] in script.called for name in used)


def _classes(script: TrainingScript, data: ast.expr | None) -> list[ast.ClassDef]:
    """The classes of this script that an expression makes objects of."""
    made = {script.name(node) for node in script.reach(data) if isinstance(node, ast.Call)}
    return [cls for cls in script.classes if cls.name in made]


def _is_trained_on(script: TrainingScript, call: ast.Call) -> bool:
    """Whether a loop that goes backward takes its batches from this loader."""
    loops = [loop for loop in script.loops if isinstance(loop, ast.For)]
    back = [loop for loop in loops if script.leads_to(loop, "backward", 0)]
    return any(node is call for loop in back for node in script.reach(loop.iter))


def check_loader_without_sampler(script: TrainingScript) -> Breaches:
    """A loader for training whose batches are the same on every rank."""
    for call in [] if splits_data(script) else loaders(script):
        is_training = constant(given(call, "shuffle")) is True or _is_trained_on(script, call)
        data = given(call, "dataset")
        if given(call, "sampler") or given(call, "batch_sampler") or not is_training or not data:
            continue
        classes = _classes(script, data)
        if any(_is_split(script, node) for node in (data, *classes)):
            continue
        what = f"{shown(call)} without a distributed sampler"
        fix = "sampler=DistributedSampler(dataset), and no shuffle"
        if any(base.endswith("IterableDataset") for cls in classes for base in script.bases(cls)):
            what = f"{shown(data)} is an IterableDataset that knows no rank"
            fix = "in __iter__: itertools.islice(rows, rank, None, world_size)"
        yield from script.hit(ScriptRule.LOADER_WITHOUT_SAMPLER, call, what, fix)


def _is_split(script: TrainingScript, data: ast.AST) -> bool:
    """Whether a data set has to do with ranks."""
    words = {script.word(node) for node in script.reach(data)}
    is_part = bool(words & {"shard", "split_dataset_by_node", "get_world_size", "WORLD_SIZE"})
    return is_part or script.has_to_do_with_ranks(data)


def check_sampler_with_shuffle(script: TrainingScript) -> Breaches:
    """A sampler and ``shuffle=True`` in one loader."""
    for call in loaders(script):
        sampler = given(call, "sampler")
        if sampler is not None and constant(given(call, "shuffle")) is True:
            what = f"sampler={shown(sampler)} and shuffle=True"
            fix = "leave out shuffle=True; set_epoch gives each epoch its order"
            yield from script.hit(ScriptRule.SAMPLER_WITH_SHUFFLE, call, what, fix)


def check_no_set_epoch(script: TrainingScript) -> Breaches:
    """A distributed sampler that shuffles, in epochs that it is never told of."""
    epochs = any("epoch" in shown(getattr(loop, "target", loop)) for loop in script.loops)
    if script.called.get("set_epoch") or not epochs or splits_data(script):
        return
    for call in script.calls("DistributedSampler", "torch"):
        shuffle = argument(call, "shuffle", 3)
        if (shuffle is None or constant(shuffle) is True) and not is_open(call):
            what, fix = f"{shown(call)} without set_epoch", "sampler.set_epoch(epoch) in each epoch"
            yield from script.hit(ScriptRule.NO_SET_EPOCH, call, what, fix)


# -- loader workers -------------------------------------------------------------------------------


def _has_workers(call: ast.Call) -> bool:
    workers = given(call, "num_workers")
    return workers is not None and constant(workers) != 0


def check_worker_seeds(script: TrainingScript) -> Breaches:
    """Random numbers of a data set that loader workers repeat, or that no seed reaches."""
    seeds = [call for call in script.calls("seed") if script.root(call) in ("random", "numpy")]
    is_seeded = not seeds or any(script.called.get(name) for name in SEEDS)
    for call in loaders(script):
        if not _has_workers(call) or argument(call, "worker_init_fn") is not None:
            continue
        for cls in _classes(script, given(call, "dataset")):
            nodes = list(ast.walk(cls))
            names = {script.name(n): n for n in nodes if isinstance(n, ast.Call)}
            for node in (node for node in nodes if isinstance(node, ast.Assign)):
                held = shown(node.targets[0])
                if held.startswith("self.") and HELD.search(script.name(node.value)):
                    what = f"{held} is copied into each loader worker, with its state"
                    fix = "worker_init_fn= that makes one from torch.initial_seed()"
                    yield from script.hit(ScriptRule.WORKER_SEEDS, node, what, fix)
            drawn = [shown(n) for name, n in names.items() if RANDOM.match(name)]
            if drawn and not is_seeded:
                what = f"{shown(seeds[0])} does not reach {drawn[0]} in loader workers"
                fix = "torch.manual_seed(SEED): workers seed random and numpy from it"
                yield from script.hit(ScriptRule.WORKER_SEEDS, seeds[0], what, fix)


def check_pickled_function(script: TrainingScript) -> Breaches:
    """Lambdas and local functions that go to a process which is spawned."""
    sent = [(call, argument(call, "fn", 0)) for call in script.calls("spawn", "torch")]
    starts = [*script.calls("set_start_method"), *script.calls("get_context")]
    is_spawned = any(constant(argument(call, "method", 0)) in SPAWNS for call in starts)
    for call in loaders(script):
        context = constant(argument(call, "multiprocessing_context"))
        if _has_workers(call) and (is_spawned or context in SPAWNS):
            sent += [(call, given(call, "collate_fn")), (call, argument(call, "worker_init_fn"))]
            for node in script.reach(given(call, "dataset")):
                if isinstance(node, ast.Call) and script.last(node) == "Lambda":
                    sent.append((node, argument(node, "lambd", 0)))
    for call, value in sent:
        values = [value, *script.values(value)] if value is not None else []
        made_here = script.functions.get(value.id, []) if isinstance(value, ast.Name) else []
        is_local = any(script.function_of(function) is not None for function in made_here)
        if value is not None and (is_local or any(isinstance(v, ast.Lambda) for v in values)):
            what = f"{shown(value)} goes to a spawned process"
            fix = "a function at the top of the file"
            yield from script.hit(ScriptRule.PICKLED_FUNCTION, call, what, fix)


# -- downloads ------------------------------------------------------------------------------------


def check_download(script: TrainingScript) -> Breaches:
    """A download by every rank, or by one rank for which the others do not wait."""
    for call in script.all_calls:
        is_data = script.root(call) in ("torchvision", "torchaudio", "torchtext")
        download = argument(call, "download") if is_data else None
        is_some = download is not None and script.has_to_do_with_ranks(download)
        is_one = script.name(call) in DOWNLOADS or constant(download) is True
        function = script.function_of(call)
        if not (is_one or is_some) or (function and function.name == "prepare_data"):
            continue
        # As in: if rank != 0: barrier(); download; if rank == 0: barrier()
        before = [barrier for barrier in script.barriers if barrier.lineno < call.lineno]
        first = [barrier for barrier in before if script.is_beside(barrier, call)]
        if is_some or script.is_guarded(call):
            if not any(_is_waited_for(script, place) for place in (call, *script.callers(call))):
                what = f"{shown(call)} by some ranks, and no barrier after it"
                rule = ScriptRule.DOWNLOAD_WITHOUT_BARRIER
                yield from script.hit(rule, call, what, "dist.barrier()")
        elif not any(script.rank_conditions(barrier) for barrier in first):
            fix = "if local_rank == 0: download; dist.barrier(); then download=False for all"
            what = f"{shown(call)} by every rank"
            yield from script.hit(ScriptRule.DOWNLOAD_BY_ALL, call, what, fix)


def _is_waited_for(script: TrainingScript, call: ast.Call) -> bool:
    """Whether ranks wait for each other after a call, in its function."""
    later = [barrier for barrier in script.barriers if barrier.lineno > call.lineno]
    return any(script.is_beside(barrier, call) for barrier in later) or any(
        "first" in name for name in script.contexts(call)
    )


# -- checkpoints ----------------------------------------------------------------------------------


def named(script: TrainingScript, name: str) -> list[ast.Call]:
    """The calls of that full name, by line."""
    calls = script.calls(name.rpartition(".")[2])
    return [call for call in calls if script.name(call) == name]


def check_save_by_all(script: TrainingScript) -> Breaches:
    """``torch.save`` to a path that is the same for all ranks, by all of them."""
    for call in named(script, "torch.save"):
        path = argument(call, "f", 1)
        if path is None or script.is_guarded(call):
            continue
        in_memory = any("BytesIO" in script.word(node) for node in script.reach(path))
        if not in_memory and not script.has_to_do_with_ranks(path):
            what, fix = f"{shown(call)} by every rank", "if rank == 0:, the rank of all nodes"
            yield from script.hit(ScriptRule.SAVE_BY_ALL, call, what, fix)


def check_load_without_weights_only(script: TrainingScript) -> Breaches:
    """``torch.load`` that does not say whether it may run code."""
    for call in named(script, "torch.load"):
        is_said = argument(call, "weights_only") or argument(call, "pickle_module", 2)
        if not is_said and not is_open(call):
            fix = "weights_only=True for tensors and states, False for files that you trust"
            yield from script.hit(ScriptRule.LOAD_WITHOUT_WEIGHTS_ONLY, call, shown(call), fix)


def check_relative_checkpoint(script: TrainingScript) -> Breaches:
    """A file that is saved to and loaded from a path relative to the current folder."""
    loads = named(script, "torch.load")
    loaded = {_beginning(script, argument(call, "f", 0)) for call in loads}
    for call in () if script.called.get("chdir") else named(script, "torch.save"):
        begins = _beginning(script, argument(call, "f", 1))
        is_there = PurePath(begins).is_absolute() or begins.startswith("~") or "://" in begins
        if begins in loaded - {""} and not is_there:
            fix = 'os.path.join(os.environ.get("CHECKPOINT_DIR", "."), "NAME")'
            what = f"{shown(call)}: a path that depends on the current folder"
            yield from script.hit(ScriptRule.RELATIVE_CHECKPOINT, call, what, fix)


def _beginning(script: TrainingScript, path: ast.AST | None, depth: int = DEPTH) -> str:
    """The text that a path begins with; empty if the script shows none, or several."""
    while path is not None and not isinstance(path, ast.Constant):
        if isinstance(path, ast.JoinedStr):
            path = path.values[0]
        elif isinstance(path, ast.BinOp):
            path = path.left
        elif isinstance(path, ast.Call) and re.search(r"\b(join|Path)$", script.name(path)):
            path = path.args[0] if path.args else None
        else:
            values = script.values(path) if depth else []
            begins = {_beginning(script, value, depth - 1) for value in values}
            return begins.pop() if len(begins) == 1 else ""
    return str(constant(path) or "")


def check_name_by_each_rank(script: TrainingScript) -> Breaches:
    """A folder or file that all ranks use, and that each names by its own clock or dice."""
    if script.called.get("broadcast_object_list"):
        return
    made = [(call, argument(call, "name", 0)) for call in named(script, "os.makedirs")]
    made += [(c, c.func.value) for c in script.calls("mkdir") if isinstance(c.func, ast.Attribute)]
    made += [(call, argument(call, "log_dir", 0)) for call in script.calls("SummaryWriter")]
    made += [(call, argument(call, "f", 1)) for call in named(script, "torch.save")]
    for call, path in made:
        names = (script.name(node) for node in script.reach(path) if isinstance(node, ast.Call))
        if (clock := next(filter(CLOCK.search, names), "")) and not script.is_guarded(call):
            fix = "one name from rank 0: names = [name]; dist.broadcast_object_list(names)"
            what = f"{shown(call)}: each rank calls {clock}() for itself"
            yield from script.hit(ScriptRule.NAME_BY_EACH_RANK, call, what, fix)


def check_hydra_folder(script: TrainingScript) -> Breaches:
    """Hydra's output folder, which each process names by the second in which it starts."""
    words = {script.word(node) for node in script.nodes} | script.called.keys()
    functions = [function for same_name in script.functions.values() for function in same_name]
    for main in (node for function in functions for node in function.decorator_list):
        if script.name(main) == "hydra.main":
            changes = isinstance(main, ast.Call) and argument(main, "version_base") is None
            if (changes or words & {"output_dir", "getcwd", "cwd"}) and not _names_folder(script):
                what = "the output folder is outputs/DAY/SECOND of each process"
                fix = "-- 'hydra.run.dir=${oc.env:RUN_DIR}/hydra', one folder for all ranks"
                yield from script.hit(ScriptRule.NAME_BY_EACH_RANK, main, what, fix)


def _names_folder(script: TrainingScript) -> bool:
    """Whether the script, or a configuration beside it, gives Hydra's folder a name."""
    beside = [*Path(script.file).parent.glob("**/*.yaml")] if Path(script.file).is_file() else []
    read = (file.read_text("utf-8", "replace") for file in beside[:MOST_CONFIGURATIONS])
    texts = (*script.lines, *read)
    return any(map(HYDRA_FOLDER.search, texts))


def saves_and_loads(script: TrainingScript) -> tuple[bool, bool]:
    """Whether names of called functions look like writing a checkpoint, and like reading one."""
    names = {script.name(call) for call in script.all_calls}
    return any(map(SAVES.search, names)), any(map(LOADS.search, names))


def check_no_checkpoint(script: TrainingScript) -> Breaches:
    """A training loop in a script that writes no checkpoint, or that never reads one."""
    saves, loads = saves_and_loads(script)
    loops = [loop for loop in script.loops if script.leads_to(loop, "backward")]
    is_started = any(script.word(node) == "__name__" for node in script.nodes)
    tops = [*loops, *(call for name in script.functions for call in script.called.get(name, ()))]
    is_started |= any(script.function_of(node) is None for node in tops)
    is_own = script.trains and not script.frameworks & {"lightning", "transformers", "composer"}
    if loops and is_own and is_started and not (saves and loads):
        what = "checkpoints are written and never read" if saves else "no checkpoint is written"
        fix = "save model, optimiser and step now and then, and load what is there at the start"
        loop = min(loops, key=lambda node: node.lineno)
        yield from script.hit(ScriptRule.NO_CHECKPOINT, loop, what, fix)
