"""Fits that end anywhere and go on, compared with one that was not disturbed."""

import pytest

from tests.fabric_train.lightning.test_lightning import fit


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("shuffled", {"val_check_interval": 2}),
        ("in order, in workers", {"accumulate_grad_batches": 2}),
        ("weighted", {"check_val_every_n_epoch": 2, "max_epochs": 4}),
        ("source", {"max_steps": 14}),
        ("no index", {"val_check_interval": 3, "check_val_every_n_epoch": None}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_ends_anywhere_goes_on_as_if_it_had_not(tmp_path, kind, options):
    undisturbed = fit(tmp_path / "undisturbed", kind, **options)
    assert len(undisturbed) > 18
    folder = tmp_path / "disturbed"
    rows: list[dict[str, str]] = []
    for start in range(60):
        # A few batches each, of which the last are lost with their rows.
        rows = fit(folder, kind, after=2 + start % 3, **options)
        if rows == undisturbed:
            break
    assert rows == undisturbed
    # A script that starts once more has nothing to train, also after it has stopped early.
    assert fit(folder, kind, **options) == undisturbed
