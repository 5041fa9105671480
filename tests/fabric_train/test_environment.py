import io

import torch

from fabric_train.environment import make_deterministic, read_environment
from tests.fabric_train.forked import run_forked


def test_what_a_result_depends_on_comes_back_from_a_checkpoint_as_it_was():
    facts = read_environment(torch.device("cpu"))
    file = io.BytesIO()
    torch.save(facts, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == facts
    assert {"torch", "threads", "cpu_capability", "device_model"} <= facts.keys()


def test_the_number_of_threads_is_part_of_it():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        assert read_environment(torch.device("cpu"))["threads"] == str(before + 1)
    finally:
        torch.set_num_threads(before)


def test_new_memory_is_not_filled_before_a_kernel_writes_it():
    def ask() -> tuple[bool, bool]:
        make_deterministic()
        fills = torch.utils.deterministic.fill_uninitialized_memory
        return torch.are_deterministic_algorithms_enabled(), fills

    assert run_forked(ask, 1, group=False) == [(True, False)]
