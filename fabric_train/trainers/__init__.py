"""What the callbacks for Lightning's, Hugging Face's and other Trainers have in common.

A loop with accelerate uses it directly: ``examples/accelerate_loop.py``.
"""

from __future__ import annotations

from fabric_train.trainers.companion import Companion
from fabric_train.trainers.loaders import cut_loader

__all__ = ["Companion", "cut_loader"]
