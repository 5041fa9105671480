"""Runs a script with Hugging Face's Trainer by FSDP2 on CPUs; accelerate takes GPUs alone for it.

sharded.py STATE_DICT_TYPE SCRIPT [its arguments]
"""

import runpy
import sys
from typing import Any

import transformers
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

begin, arguments = AcceleratorState.__init__, transformers.TrainingArguments
kind = sys.argv[1]


def begin_sharded(self: Any, *args: Any, fsdp_plugin: Any = None, **options: Any) -> None:
    begin(self, *args, fsdp_plugin=fsdp_plugin, **options)
    if fsdp_plugin is not None:
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP


def add_fsdp(*args: Any, **options: Any) -> Any:
    return arguments(*args, fsdp=True, fsdp_config={"state_dict_type": kind}, **options)


AcceleratorState.__init__ = begin_sharded  # type: ignore[method-assign]
transformers.TrainingArguments = add_fsdp
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
