import multiprocessing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fabric_train import InputError, check_picklable


class Images(Dataset[Any]):
    """A data set with members of its own."""

    def __init__(self, **members: Any) -> None:
        vars(self).update(members)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def collate(batch: list[Any], scale: Any = None) -> list[Any]:
    return batch


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"dataset": Images(transforms=[collate, lambda x: x])}, ["transforms[1] is a lam"]),
        ({"dataset": Images(inner=Images(file=Path(__file__).open()))}, ["dataset.inner.file"]),  # noqa: SIM115
        ({"collate_fn": lambda batch: batch}, ["collate_fn is a lambda", "test_pickling.py:"]),
        ({"collate_fn": partial(collate, scale=lambda x: x)}, ["collate_fn.keywords['scale']"]),
        ({"worker_init_fn": lambda worker: None}, ["worker_init_fn"]),
    ],
)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_a_worker_cannot_get_is_named_with_its_place(options, names, method):
    loader = DataLoader(
        **{"dataset": Images(), **options}, num_workers=1, multiprocessing_context=method
    )
    with pytest.raises(InputError) as refused:
        check_picklable(loader)
    for words in (*names, f"started by {method}", "worker_init_fn, or num_workers 0"):
        assert words in str(refused.value)


def test_what_is_forked_or_read_here_needs_no_pickle():
    unpicklable = Images(transform=lambda x: x)
    check_picklable(DataLoader(unpicklable))
    forked: Any = DataLoader(unpicklable, num_workers=1, multiprocessing_context="fork")
    check_picklable(forked)
    assert next(iter(forked)).item() == 0


def test_what_can_be_pickled_passes_and_a_start_method_is_not_chosen_by_asking():
    before = multiprocessing.get_start_method(allow_none=True)
    check_picklable(DataLoader(Images(data=torch.ones(3)), num_workers=1, collate_fn=collate))
    check_picklable(DataLoader(Images(), num_workers=1, multiprocessing_context="spawn"))
    assert multiprocessing.get_start_method(allow_none=True) == before
