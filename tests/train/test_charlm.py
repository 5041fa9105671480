"""The language model: its text, its windows, its sizes."""

import math
import os

import pytest
import torch

from fabric_train.errors import InputError
from train.build import augment
from train.config import TrainConfig
from train.workloads import WORKLOADS, charlm

CONFIG = TrainConfig(workload="charlm")


def test_the_text_is_the_one_that_scores_are_compared_on():
    train_set, test_set = charlm.load(CONFIG)
    assert len(train_set) == 1829
    assert len(test_set) == 219
    inputs, targets = train_set[7]
    assert inputs.shape == targets.shape == (64,)
    assert torch.equal(inputs[1:], targets[:-1])


def test_a_changed_library_is_refused_with_the_file_and_what_to_use(tmp_path):
    (tmp_path / "a.py").write_text("changed")
    with pytest.raises(InputError, match=r"(?s)a\.py is not the text.*--workload digits"):
        charlm.read_text(tmp_path, {"a.py": "0" * 64})


def test_a_library_without_the_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=f"(?s){os.strerror(2)}.*--workload digits"):
        charlm.read_text(tmp_path, {"a.py": "0" * 64})


def test_every_character_is_a_target_once_without_overlap():
    windows = charlm.cut_windows(bytes(range(101)), context=10, stride=10)
    assert len(windows) == 10
    assert windows.tensors[1].flatten().tolist() == list(range(1, 101))


def test_a_character_is_told_from_those_before_it_alone():
    torch.manual_seed(0)
    model = charlm.build_model(CONFIG).eval()
    text = torch.randint(0, 128, (2, 64))
    changed = text.clone()
    changed[:, 40:] = 0
    with torch.no_grad():
        before, after = model(text), model(changed)
    assert before.shape == (2, 64, 128)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, 40:], after[:, 40:])


def test_an_untrained_model_knows_no_character_better_than_another():
    torch.manual_seed(0)
    model = charlm.build_model(CONFIG).eval()
    inputs, targets = charlm.load(CONFIG)[1][:16]
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    bits = charlm.describe_loss(loss.item())["test_bits_per_character"]
    assert bits == pytest.approx(math.log2(128), abs=0.1)


@pytest.mark.parametrize(("size", "millions"), [("tiny", 0.112), ("gpt2-small", 85.9)])
def test_a_size_has_the_weights_that_its_name_promises(size, millions):
    with torch.device("meta"):
        model = charlm.Transformer(charlm.SIZES[size], dropout=0.0)
    count = sum(weight.numel() for weight in model.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.02)


def test_images_cannot_be_shifted_where_there_are_none():
    config = TrainConfig(workload="charlm", shift_images=True)
    with pytest.raises(InputError, match="charlm has no images"):
        augment(config, WORKLOADS["charlm"].load(config)[0])
