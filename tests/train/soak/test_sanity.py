"""The pass before a training: it finds what would fail later, and leaves no trace."""

import pytest

from tests.train.strategy_rows import Row, run

ROWS = (Row(name="ddp"), Row(name="fsdp"), Row(name="local_sgd"), Row(name="bagua:qadam"))


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS])
def test_a_training_after_the_pass_is_the_one_without(tmp_path, row):
    options = ("--dropout=0.1", "--val_share=0.2", "--patience=3", "--num_workers=1")
    plain = run(row, 2, tmp_path / "plain", options=options)
    checked = run(row, 2, tmp_path / "checked", options=(*options, "--sanity_pass=true"))
    assert checked.losses == plain.losses
    for same in ("weights_sha256", "test_loss", "resumed_from_step", "steps"):
        assert checked.metrics[same] == plain.metrics[same]
    assert not list((tmp_path / "checked").glob(".staging*"))
