"""What all strategies have in common: their names, options and refusals."""

import re
import subprocess
import sys

import pytest
import torch
from torch import nn

from fabric_train.errors import InputError
from fabric_train.strategies import INSTEAD, STRATEGIES, check_name, make_strategy
from fabric_train.strategies.strategy import Place

KNOWN = {*STRATEGIES, "fsdp", "tp", "fsdp+tp", "pipeline", "powersgd", "fp16", "bf16"}
KNOWN |= {"local_sgd", "diloco", "bagua"}


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_name_makes_the_strategy_that_bears_it(name):
    assert make_strategy(name).name == name


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dpp", {}, "did you mean dp or ddp?"),
        ("bagua", {}, "--strategy bagua:gradient_allreduce, or :bytegrad"),
        ("powerSGD", {}, "did you mean powersgd"),
        ("bytegrad", {}, "did you mean bagua:bytegrad"),
        ("colossalai", {}, "one of ddp, ddp_spawn, "),
        ("bagua:asynch", {}, "did you mean bagua:async or"),
        ("bagua:qadam", {"bits": 4}, "bits=4 of bagua:qadam is not one of 8, 1"),
        ("ddp", {"exat": True}, "did you mean exact?"),
        ("ddp", {"exact": "yes"}, "exact='yes' of ddp is not true or false"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_write(name, options, message):
    with pytest.raises(InputError) as caught:
        make_strategy(name, options)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", INSTEAD)
def test_a_name_that_was_dropped_says_what_to_write_and_why(name):
    assert name not in STRATEGIES
    with pytest.raises(InputError) as caught:
        check_name(name)
    assert caught.value.what.startswith(f"--strategy {name}: ")
    assert len(caught.value.what) > len(f"--strategy {name}: ") + 10
    named = re.findall(r"--strategy (?!out\b)([a-z0-9_+:]+)", caught.value.fix)
    assert named or "fabric_train.horovod" in caught.value.fix or "leave" in caught.value.fix
    assert {each.partition(":")[0] for each in named} <= {each.partition(":")[0] for each in KNOWN}


def test_names_are_checked_without_torch():
    code = "import sys, fabric_train.strategies as s; s.check_name('ddp'); "
    code += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", ["ddp", "fp16"])
def test_a_sync_batchnorm_that_ranks_would_call_unequally_often_is_refused(name):
    model = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    place = Place(device=torch.device("cpu"), world_size=3)
    with pytest.raises(InputError, match=r"1 is a SyncBatchNorm.*3 processes do not share 4"):
        make_strategy(name).setup(model, torch.optim.AdamW, place, virtual_shards=4)
