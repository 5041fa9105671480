"""Quantities, against the reader of Kubernetes' own client."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity as parse_by_the_client

from launcher.job.values import parse_quantity, parse_whole, render_bytes


@pytest.mark.parametrize(
    "text",
    ["512Mi", "1.5G", "500m", "1e3", "12E", "2", "1k", "5.", ".5", "100n", "3u", "-1", "+2Ki"],
)
def test_a_quantity_is_the_number_that_the_client_reads(text):
    assert parse_quantity(text) == float(parse_by_the_client(text))


@pytest.mark.parametrize(
    "text", ["", ".", "Gi", "1gi", "1K", "1 Gi", "0x10", "1GiB", "e3", "1e999"]
)
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="is no quantity"):
        parse_quantity(text)


def test_a_whole_number_is_exact_and_rounded_up():
    assert parse_whole("1.0000001Mi") == 2**20 + 1
    assert parse_whole("7.000000000000000001Ei") == 7 * 2**60 + 2


@given(st.integers(1, 2**63))
def test_bytes_read_back_as_they_were_written(n_bytes):
    assert parse_whole(render_bytes(n_bytes)) == n_bytes
