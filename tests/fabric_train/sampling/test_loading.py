"""Any data set in a loop of one's own: each sample once in an epoch, in any world."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fabric_train import InputError, share_loader

SIZE, BATCH = 48, 8
Sample = tuple[int, float]


class Indexed(Dataset[Sample]):
    """Samples by number, each with a random number as an augmentation would draw."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Sample:
        return index, float(np.random.random())


class Endless(IterableDataset[Sample]):
    """It has no length."""

    def __iter__(self) -> Iterator[Sample]:
        return iter([(0, 0.0)])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": Endless()}, ["Endless is iterable and has no length", "__len__"]),
        ({"dataset": Indexed(), "batch_size": None}, ["batch_size=None"]),
        ({"dataset": Indexed(), "batch_size": 40, "drop_last": True}, ["48 samples are fewer"]),
        ({"dataset": Indexed(), "global_batch_size": 9}, ["2 processes cannot share"]),
    ],
)
def test_a_loader_that_cannot_be_cut_is_refused(options, words):
    total = options.pop("global_batch_size", None)
    loader: Any = DataLoader(**options)
    with pytest.raises(InputError) as refused:
        share_loader(
            loader, rank=0, world_size=2, seed=0, place=lambda: (0, 0), global_batch_size=total
        )
    for word in words:
        assert word in str(refused.value)


def test_a_tensor_data_set_gives_tensors():
    data = torch.utils.data.TensorDataset(torch.arange(6.0))
    loader = share_loader(
        DataLoader(data, batch_size=3), rank=0, world_size=1, seed=0, place=lambda: (0, 1)
    )
    ((batch,),) = loader
    assert batch.tolist() == [3.0, 4.0, 5.0]
