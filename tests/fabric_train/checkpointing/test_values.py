"""What was found or decided stays as it is, and a field is not taken for its neighbour."""

import dataclasses
import importlib

import pytest

POSITIONAL = {"Writer", "Save"}


@pytest.mark.parametrize("module", ["commit", "lineage", "retention"])
def test_values_are_frozen_and_their_fields_have_names(module):
    classes = [
        each
        for each in vars(importlib.import_module(f"fabric_train.checkpointing.{module}")).values()
        if dataclasses.is_dataclass(each)
    ]
    for each in classes:
        assert each.__dataclass_params__.frozen, each
        assert each.__name__ in POSITIONAL or all(
            field.kw_only for field in dataclasses.fields(each)
        ), each
