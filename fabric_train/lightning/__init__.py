"""Checkpoints and resuming for scripts that use Lightning's Trainer, also under LightningCLI.

from fabric_train.lightning import ContinuityCallback, read_world
trainer = Trainer(callbacks=[ContinuityCallback()], **read_world(), ...)
"""

from __future__ import annotations

from fabric_train.lightning.callback import ContinuityCallback, read_world

__all__ = ["ContinuityCallback", "read_world"]
