"""Codes of 8 bits and 1 bit."""

import numpy as np
import pytest
import torch

from fabric_train.communication.compression import BLOCK, Blocks, MinMaxUInt8, OneBit
from tests.fabric_train.communication import quadratic


def full(rows):
    return torch.full((len(rows), 1), BLOCK)


@pytest.mark.parametrize("size", [1e-20, 1e-8, 1.0, 1e12])
def test_8_bits_keep_a_number_to_half_a_step_at_any_size(size):
    rows = torch.randn(5, BLOCK) * size
    codec = MinMaxUInt8()
    kept = codec.decode(codec.encode(rows, full(rows)))
    step = (rows.amax(1) - rows.amin(1)) / 255
    assert ((kept - rows).abs().amax(1) <= 0.502 * step).all()
    expected = np.stack([quadratic.quantise(row) for row in rows.numpy()])
    np.testing.assert_allclose(kept.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("codec", [MinMaxUInt8(), OneBit()])
def test_a_row_of_one_number_stays_that_number(codec):
    for value in (0.0, 3.25, 1e-12):
        rows = torch.full((1, BLOCK), value)
        torch.testing.assert_close(
            codec.decode(codec.encode(rows, full(rows))), rows, rtol=1e-5, atol=0
        )


def test_zero_stays_zero_in_8_bits():
    rows = torch.randn(50, BLOCK)
    rows[:, 7] = 0
    codec = MinMaxUInt8()
    assert not codec.decode(codec.encode(rows, full(rows)))[:, 7].any()


def test_a_number_that_is_none_is_not_hidden():
    rows = torch.zeros(1, BLOCK)
    rows[0, 3] = torch.nan
    assert MinMaxUInt8().decode(MinMaxUInt8().encode(rows, full(rows))).isnan().any()
    assert OneBit().decode(OneBit().encode(rows, full(rows))).isnan().any()


def test_one_bit_keeps_signs_and_the_mean_size():
    rows = torch.randn(3, BLOCK)
    codec = OneBit()
    code = codec.encode(rows, full(rows))
    assert code.dtype == torch.uint8
    assert code.shape == (3, 4 + BLOCK // 8)
    expected = np.stack([quadratic.signs(row) for row in rows.numpy()])
    np.testing.assert_allclose(codec.decode(code).numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_tensors_have_blocks_of_their_own_and_come_back_whole(ranks):
    tensors = [torch.randn(2, 3), torch.randn(600), torch.randn(512), torch.randn(())]
    blocks = Blocks(tensors, ranks)
    packed = blocks.pack(tensors)
    assert packed.shape == (blocks.count, 512)
    assert blocks.count % ranks == 0
    assert blocks.counts[:5, 0].tolist() == [6, 512, 88, 512, 1]
    back = [torch.empty_like(each) for each in tensors]
    blocks.unpack(packed, back)
    for one, other in zip(tensors, back, strict=True):
        assert torch.equal(one, other)


def test_a_small_tensor_has_the_scale_of_its_own_numbers():
    tensors = [torch.full((10,), -2.0), torch.full((700,), 100.0)]
    blocks = Blocks(tensors)
    back = [torch.empty_like(each) for each in tensors]
    blocks.unpack(OneBit().decode(OneBit().encode(blocks.pack(tensors), blocks.counts)), back)
    for one, other in zip(tensors, back, strict=True):
        torch.testing.assert_close(one, other)
