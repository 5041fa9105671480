"""What Lightning 2 has dropped, and what to write today."""

from __future__ import annotations

import ast

from launcher.manifests.checks.rules import Breaches
from launcher.manifests.scripts.ranks import LIGHTNING, TrainingScript
from launcher.manifests.scripts.reading import constant, shown
from launcher.manifests.scripts.rules import ScriptRule

DDP, MIXED, SPLIT = 'strategy="ddp"', 'precision="16-mixed"', "a step's end is part of the step"
ARGUMENTS = {
    "gpus": 'accelerator="gpu", devices=N',
    "tpu_cores": 'accelerator="tpu", devices=N',
    "num_processes": "devices=N",
    "distributed_backend": DDP,
    "auto_select_gpus": 'devices="auto"',
    "replace_sampler_ddp": "use_distributed_sampler=...",
    **dict.fromkeys(("use_amp", "amp_backend", "amp_level"), MIXED),
    "resume_from_checkpoint": "trainer.fit(model, ckpt_path=...)",
    "checkpoint_callback": "enable_checkpointing=...",
    "progress_bar_refresh_rate": "callbacks=[TQDMProgressBar(refresh_rate=N)]",
    "weights_summary": "enable_model_summary=..., or callbacks=[ModelSummary(max_depth=N)]",
    "auto_lr_find": "Tuner(trainer).lr_find(model)",
    "auto_scale_batch_size": "Tuner(trainer).scale_batch_size(model)",
}
"""Keywords of Trainer."""
KEYS = ("strategy", "accelerator")
VALUES = {
    **{(key, name): DDP for key in KEYS for name in ("dp", "ddp2", "horovod")},
    ("strategy", "ddp_sharded"): 'strategy="fsdp"',
    ("accelerator", "ddp"): DDP,
    ("accelerator", "ddp_cpu"): f'accelerator="cpu", {DDP}',
}
"""Values of keywords that are still there."""
METHODS = {
    **dict.fromkeys(("training_step_end", "validation_step_end", "test_step_end"), SPLIT),
    "training_epoch_end": "on_train_epoch_end(self), with outputs that the module has kept",
    "validation_epoch_end": "on_validation_epoch_end(self), with outputs that the module has kept",
    "test_epoch_end": "on_test_epoch_end(self), with outputs that the module has kept",
    "on_epoch_start": "on_train_epoch_start",
    "on_epoch_end": "on_train_epoch_end",
}
"""Methods of modules and callbacks that nothing calls."""
NAMES = {
    "metrics": "torchmetrics",
    "DDPPlugin": "lightning.pytorch.strategies.DDPStrategy",
    "LightningLite": "lightning.fabric.Fabric",
    "from_argparse_args": "LightningCLI, or Trainer(max_epochs=args.max_epochs, ...)",
    "add_argparse_args": "LightningCLI, or arguments of your own",
}
"""What is imported from Lightning, or called there."""


def check_lightning(script: TrainingScript) -> Breaches:
    """Everything that Lightning has dropped, with what to write today."""
    breaches: list[tuple[ast.expr | ast.stmt, str, str | None]] = []
    for call in script.calls("Trainer", *LIGHTNING):
        for keyword in call.keywords:
            name, value = keyword.arg or "", constant(keyword.value)
            fix = ARGUMENTS.get(name) or VALUES.get((name, str(value)))
            breaches.append((keyword.value, f"{name}={shown(keyword.value)}", fix))
    for cls in script.classes:
        if any(base.partition(".")[0] in LIGHTNING for base in script.bases(cls)):
            hooks = [hook for hook in cls.body if isinstance(hook, ast.FunctionDef)]
            breaches += [(hook, f"def {hook.name}", METHODS.get(hook.name)) for hook in hooks]
    for node in script.nodes:
        names = [script.name(node)] if isinstance(node, ast.Attribute) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in (path for path in names if path.partition(".")[0] in LIGHTNING):
            fix = next((NAMES[part] for part in name.split(".")[1:] if part in NAMES), None)
            breaches.append((node, name, fix))  # type: ignore[arg-type]
    for at, what, fix in breaches:
        if fix:
            yield from script.hit(ScriptRule.LIGHTNING_DROPPED, at, what, f"write {fix}")
