"""What Lightning 2 has dropped, and what to write today."""

from __future__ import annotations

import ast
import re

from launcher.manifests.checks.rules import Breaches
from launcher.manifests.scripts.ranks import LIGHTNING
from launcher.manifests.scripts.reading import Script, constant, shown
from launcher.manifests.scripts.rules import ScriptRule

ARGUMENTS = {
    "gpus": 'accelerator="gpu", devices=N',
    "num_gpus": 'accelerator="gpu", devices=N',
    "tpu_cores": 'accelerator="tpu", devices=N',
    "ipus": "leave it out: Lightning runs on no IPU any more",
    "num_processes": "devices=N",
    "nb_gpu_nodes": "num_nodes=N",
    "distributed_backend": 'strategy="ddp"',
    "auto_select_gpus": 'devices="auto"',
    "replace_sampler_ddp": "use_distributed_sampler=False",
    "use_amp": 'precision="16-mixed"',
    "amp_backend": 'precision="16-mixed"',
    "amp_level": 'precision="16-mixed"',
    "resume_from_checkpoint": "trainer.fit(model, ckpt_path=...)",
    "checkpoint_callback": "enable_checkpointing=True",
    "weights_save_path": "default_root_dir=...",
    "default_save_path": "default_root_dir=...",
    "early_stop_callback": "callbacks=[EarlyStopping(...)]",
    "progress_bar_refresh_rate": "callbacks=[TQDMProgressBar(refresh_rate=N)]",
    "show_progress_bar": "enable_progress_bar=False",
    "weights_summary": "enable_model_summary=False, or callbacks=[ModelSummary(max_depth=N)]",
    "flush_logs_every_n_steps": "CSVLogger(flush_logs_every_n_steps=N)",
    "log_gpu_memory": "callbacks=[DeviceStatsMonitor()]",
    "track_grad_norm": "self.log_dict(grad_norm(self, norm_type=2)) in on_before_optimizer_step",
    "terminate_on_nan": "detect_anomaly=True",
    "stochastic_weight_avg": "callbacks=[StochasticWeightAveraging(swa_lrs=...)]",
    "reload_dataloaders_every_epoch": "reload_dataloaders_every_n_epochs=1",
    "truncated_bptt_steps": "manual optimisation, with the loop in training_step",
    "auto_lr_find": "Tuner(trainer).lr_find(model)",
    "auto_scale_batch_size": "Tuner(trainer).scale_batch_size(model)",
    "multiple_trainloader_mode": "CombinedLoader(loaders, mode=...)",
    "move_metrics_to_cpu": "metric.to('cpu') in the module",
    "max_nb_epochs": "max_epochs=N",
}
"""Keywords of Trainer."""
STRATEGIES = {
    "dp": 'strategy="ddp"',
    "ddp2": 'strategy="ddp"',
    "horovod": 'strategy="ddp"',
    "ddp_cpu": 'accelerator="cpu", strategy="ddp"',
    "ddp_sharded": 'strategy="fsdp"',
    "fsdp_native": 'strategy="fsdp"',
    "bagua": 'strategy="ddp"',
    "colossalai": 'strategy="fsdp"',
    "tpu_spawn": 'strategy="xla"',
}
"""Values of ``strategy`` and, long ago, of ``accelerator``."""
ENDS = "{0}(self, outputs) is on_{0}(self): keep what {1} returns in a list of your own"
METHODS = {
    "training_step_end": "do it at the end of training_step: only dp called it",
    "validation_step_end": "do it at the end of validation_step: only dp called it",
    "test_step_end": "do it at the end of test_step: only dp called it",
    "training_epoch_end": ENDS.format("train_epoch_end", "training_step"),
    "validation_epoch_end": ENDS.format("validation_epoch_end", "validation_step"),
    "test_epoch_end": ENDS.format("test_epoch_end", "test_step"),
    "on_epoch_start": "on_train_epoch_start",
    "on_epoch_end": "on_train_epoch_end",
    "on_batch_start": "on_train_batch_start",
    "on_batch_end": "on_train_batch_end",
    "tng_dataloader": "train_dataloader",
    "on_pretrain_routine_start": "on_fit_start",
}
"""Methods of modules and callbacks that nothing calls."""
NAMES = {
    "pytorch_lightning.metrics": "torchmetrics",
    "pytorch_lightning.core.lightning": "from lightning.pytorch import LightningModule",
    "pytorch_lightning.lite": "from lightning.fabric import Fabric",
    "pytorch_lightning.utilities.cli": "from lightning.pytorch.cli import LightningCLI",
    "DDPPlugin": "from lightning.pytorch.strategies import DDPStrategy",
    "DDPSpawnPlugin": 'strategy="ddp_spawn"',
    "LightningLite": "from lightning.fabric import Fabric",
    "from_argparse_args": "LightningCLI, or Trainer(max_epochs=args.max_epochs, ...)",
    "add_argparse_args": "LightningCLI, or arguments of your own",
}
"""Modules, classes and functions: of a whole module by its full name."""


def check_arguments(script: Script) -> Breaches:
    """Keywords of Trainer, and strategies, that are no more."""
    for call in script.calls("Trainer", *LIGHTNING):
        for keyword in call.keywords:
            name, value = keyword.arg or "", constant(keyword.value)
            if name in ARGUMENTS:
                at, what, fix = keyword.value, f"{name}={shown(keyword.value)}", ARGUMENTS[name]
                yield from script.hit(ScriptRule.LIGHTNING_DROPPED, at, what, fix)
            elif name in ("strategy", "accelerator") and value in (*STRATEGIES, "ddp"):
                if name == "strategy" and value == "ddp":
                    continue
                fix = STRATEGIES.get(str(value), 'accelerator="gpu", strategy="ddp"')
                what = f"{name}={value!r}"
                yield from script.hit(ScriptRule.LIGHTNING_DROPPED, keyword.value, what, fix)


def check_methods(script: Script) -> Breaches:
    """Hooks that Lightning does not call any more."""
    for one in script.classes:
        bases = (base for base in script.bases(one) if base.partition(".")[0] in LIGHTNING)
        if not any(re.search(r"Module$|Callback$|DataModule$", base) for base in bases):
            continue
        for function in one.body:
            if isinstance(function, ast.FunctionDef) and function.name in METHODS:
                what = f"def {function.name} of {one.name}"
                yield from script.hit(
                    ScriptRule.LIGHTNING_DROPPED, function, what, METHODS[function.name]
                )


def check_names(script: Script) -> Breaches:
    """Imports and functions that are no more."""
    for node in script.parents:
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and script.root(node) in LIGHTNING:
            last = script.name(node.func).rpartition(".")[2]
            names = [script.name(node.func)] if last.endswith("argparse_args") else []
        for name in (one for one in names if one.partition(".")[0] in LIGHTNING):
            for old, fix in NAMES.items():
                is_it = f"{name}.".startswith(f"{old}.") if "." in old else name.endswith(f".{old}")
                if is_it and isinstance(node, ast.stmt | ast.expr):
                    yield from script.hit(ScriptRule.LIGHTNING_DROPPED, node, name, fix)
