"""A character-level transformer on Python library files that are equal in many versions."""

from __future__ import annotations

import hashlib
import math
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from fabric_train.communication.tensor_parallel import Column
from fabric_train.errors import InputError
from train.config import TrainConfig
from train.metrics import Measures

NUM_CLASSES = 128
"""ASCII: a character's number is its class."""
TEST_BATCH_SIZE = 16
STRIDE = 64
"""Characters from the start of one sample to the next; samples with more context overlap."""

TRAIN_FILES = {
    "email/architecture.rst": "f2b2ba7497fd02d13abcfc2a98099283a94b09e8b4f2c1c822ecacde3bec3eae",
    "optparse.py": "07d224301cba312fa0697bff9cd5a4bb4f778a90629632091b3f4ae874d89af5",
    "tracemalloc.py": "c2cc84a05b824df79840c98729a0e94ef8909b11c528a1b2c5a00aa436b97b25",
    "unittest/suite.py": "ed2da92bc9f97c53403ee2d3d12cc53b16a96e85d596ebc887b5a93458f3f6bc",
    "xml/sax/handler.py": "64c7aae49f1dd382a7b9012610307bfa1d43a14a5dc09a5c8da30903f6805c3d",
}
TEST_FILES = {
    "json/__init__.py": "d5d41e2c29049515d295d81a6d40b4890fbec8d8482cfb401630f8ef2f77e4d5",
}
"""SHA-256 by name: the same bytes in Python 3.10.13, 3.11.7, 3.12.1, 3.13.0 and Debian's 3.11.2."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """The transformer's dimensions; ``context`` is in characters."""

    layers: int
    heads: int
    width: int
    context: int


SIZES = {
    "tiny": Size(layers=2, heads=4, width=64, context=64),
    "small": Size(layers=4, heads=4, width=128, context=128),
    "medium": Size(layers=6, heads=6, width=384, context=256),
    "gpt2-small": Size(layers=12, heads=12, width=768, context=1024),
}
"""By the name that ``--model_size`` takes; the last is GPT-2's (Radford et al. 2019) except for the
vocabulary."""


def load(config: TrainConfig) -> tuple[TensorDataset, TensorDataset]:
    """Windows of text and, for each character, the one after it: ([n, context], [n, context]).

    Raises InputError where the library's files are missing or not the ones that are meant.
    """
    library, context = Path(sysconfig.get_path("stdlib")), SIZES[config.model_size].context
    return (
        cut_windows(read_text(library, TRAIN_FILES), context, STRIDE),
        # Without overlap: each character of the test set counts once.
        cut_windows(read_text(library, TEST_FILES), context, context),
    )


def read_text(library: Path, files: dict[str, str]) -> bytes:
    """The files one after the other; raises InputError that names the first wrong file."""
    text = b""
    for name, expected in files.items():
        try:
            content = (library / name).read_bytes()
        except OSError as error:
            raise InputError(
                f"workload=charlm reads {library / name}: {error.strerror}",
                "use a Python whose standard library is unpacked on disk, or --workload digits",
            ) from error
        if hashlib.sha256(content).hexdigest() != expected:
            raise InputError(
                f"workload=charlm: {library / name} is not the text that scores are compared on",
                "use an unchanged CPython 3.11 to 3.13, or --workload digits",
            )
        text += content
    return text


def cut_windows(text: bytes, context: int, stride: int) -> TensorDataset:
    """Inputs and targets of every whole window, as copies of their own."""
    characters = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    windows = characters.unfold(0, context + 1, stride)
    return TensorDataset(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())


def describe_loss(test_loss: float) -> Measures:
    """Bits per character: the test loss in the unit that language models are compared in."""
    return {"test_bits_per_character": test_loss / math.log(2)}


def build_model(config: TrainConfig) -> nn.Module:
    """A decoder-only transformer to logits of shape [batch, context, 128]."""
    size = SIZES[config.model_size]
    return Transformer(size, config.dropout, recomputes=config.checkpoint_activations)


class Transformer(nn.Module):
    """GPT-2's architecture: norms before each part, one matrix for embedding and logits."""

    def __init__(self, size: Size, dropout: float, *, recomputes: bool = False) -> None:
        super().__init__()
        self.characters = nn.Embedding(NUM_CLASSES, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(
            *(Block(size, dropout, recomputes=recomputes) for _ in range(size.layers))
        )
        self.norm = nn.LayerNorm(size.width)
        self.apply(draw_weights)
        for name, weight in self.named_parameters():
            if name.endswith("onto_residual.weight"):
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * size.layers))
        self.tensor_plan = {
            "blocks.*.attention.project": Column(blocks=3, unit=size.width // size.heads),
            "blocks.*.feed_forward.widen": Column(),
            "blocks.*.onto_residual": "row",
        }
        self.pipeline_plan = {
            "embed": ("characters", "positions", "dropout"),
            "blocks": (),
            "to_logits": ("norm", "characters"),
        }

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """``text`` holds character numbers, [batch, up to context]."""
        return self.to_logits(self.blocks(self.embed(text)))

    def embed(self, text: torch.Tensor) -> torch.Tensor:
        """What goes into the blocks, [batch, length, width]."""
        places = torch.arange(text.shape[1], device=text.device)
        states: torch.Tensor = self.dropout(self.characters(text) + self.positions(places))
        return states

    def to_logits(self, states: torch.Tensor) -> torch.Tensor:
        """What comes out of the blocks, as a logit for each character."""
        return linear(self.norm(states), self.characters.weight)


class Block(nn.Module):
    """Attention, then a feed-forward network, each added to what came in.

    With ``recomputes`` only the input is kept, and the backward pass computes the rest again.
    """

    def __init__(self, size: Size, dropout: float, *, recomputes: bool) -> None:
        super().__init__()
        self.attention = Attention(size, dropout)
        self.feed_forward = FeedForward(size, dropout)
        self.recomputes = recomputes

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        if self.recomputes and torch.is_grad_enabled():
            # Draws the same random numbers again.
            result: torch.Tensor = checkpoint(self.compute, states, use_reentrant=False)
            return result
        return self.compute(states)

    def compute(self, states: torch.Tensor) -> torch.Tensor:
        """What comes out of the block."""
        states = states + self.attention(states)
        result: torch.Tensor = states + self.feed_forward(states)
        return result


class Attention(nn.Module):
    """Causal self-attention over several heads."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        self.width_per_head = size.width // size.heads
        self.attention_dropout = dropout
        self.norm = nn.LayerNorm(size.width)
        self.project = nn.Linear(size.width, 3 * size.width)
        self.onto_residual = nn.Linear(size.width, size.width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        projected = self.project(self.norm(states))
        # [batch, length, 3, heads, per head] to three of [batch, heads, length, per head]. There
        # are fewer heads where several processes share them.
        split = projected.unflatten(-1, (3, -1, self.width_per_head))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.attention_dropout if self.training else 0.0,
            is_causal=True,
        )
        joined = attended.transpose(1, 2).flatten(2)
        result: torch.Tensor = self.dropout(self.onto_residual(joined))
        return result


class FeedForward(nn.Module):
    """Two layers, the inner one four times as wide."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size.width)
        self.widen = nn.Linear(size.width, 4 * size.width)
        self.activation = nn.GELU(approximate="tanh")
        self.onto_residual = nn.Linear(4 * size.width, size.width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        widened = self.activation(self.widen(self.norm(states)))
        result: torch.Tensor = self.dropout(self.onto_residual(widened))
        return result


def draw_weights(module: nn.Module) -> None:
    """GPT-2's initial weights."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
