"""Compressed and decentralised strategies on a small quadratic, beside their published rules.

Their checkpoints are tried in whole trainings: ``tests/train/strategy_rows.py``.
"""

from functools import partial

import numpy as np
import pytest

from tests.fabric_train.communication import quadratic
from tests.fabric_train.forked import run_forked
from tests.fabric_train.strategies.quadratic_loop import train
from tests.fabric_train.strategies.test_bagua import CASES, QADAM

SHIFT = {"peer_selection_mode": "shift_one", "communication_interval": 2}
MORE = (
    ("bagua:decentralized", SHIFT,
     partial(quadratic.run_decentralized, peers="shift_one", interval=2)),
    ("bagua:qadam", {"warmup_steps": 5, "bits": 1}, partial(QADAM, bits=1, feedback=True)),
    ("bagua:qadam", {"warmup_steps": 5, "error_feedback": False},
     partial(QADAM, bits=8, feedback=False)),
)  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("name", "options", "rule"), [*((name, *case) for name, case in CASES.items()), *MORE]
)
def test_weights_follow_the_published_rule(name, options, rule, ranks):
    expected = list(rule(ranks))
    results = run_forked(partial(train, name, options, adam=name == "bagua:qadam"), ranks)
    for rank, result in enumerate(results):
        apart = np.abs(np.stack(result["weights"]) - np.stack([each[rank] for each in expected]))
        # Numpy and torch may round a number to two neighbouring codes.
        assert np.mean(apart > (4e-3 if name == "fp16" else 1e-3)) < 0.005, np.sort(apart[-1])[-9:]
        assert result["warnings"] == []
