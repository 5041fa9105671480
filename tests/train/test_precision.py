"""16-mixed and bf16-true, under each strategy that takes them, through a kill and a resize."""

import pytest

from fabric_train.errors import InputError
from fabric_train.launch.precision import LossScaler, set_precision
from fabric_train.strategies import make_strategy


@pytest.fixture(autouse=True)
def too_large_a_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first gradients overflow, so that the scale falls and steps are left out."""
    begin = LossScaler.__init__

    def begin_above(scaler: LossScaler, device: str) -> None:
        begin(scaler, device)
        scaler._init_scale = 2.0**20

    monkeypatch.setattr(LossScaler, "__init__", begin_above)


def test_a_strategy_whose_ranks_would_leave_out_steps_of_their_own_refuses_16_mixed():
    with pytest.raises(InputError, match="local_sgd does not train in 16-mixed") as refused:
        set_precision(make_strategy("local_sgd"), "16-mixed", "cpu")
    assert "--precision 32-true or bf16-mixed or bf16-true" in refused.value.fix
