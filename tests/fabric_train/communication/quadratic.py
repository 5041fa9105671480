"""A quadratic of each rank for compressed and decentralized communication, and published update
rules for it in numpy.

Rank i's loss is ``sum((scale_i * (x - target_i))^2) / 2`` over all weights x. The rules are written
from the papers, and share no code with the package. ``xs`` is [ranks, weights] throughout.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

SHAPES = {"matrix": (60, 50), "bias": (9,)}
WEIGHTS = 3009
STEPS = 12
LR = 0.1
Array = np.ndarray


def make_problem(rank: int) -> tuple[Array, Array]:
    """Scale and target of a rank, [weights] each."""
    random = np.random.default_rng(rank)
    scale = random.uniform(0.3, 1.0, WEIGHTS).astype(np.float32)
    return scale, random.normal(0, 1 + rank, WEIGHTS).astype(np.float32)


def make_start() -> Array:
    """The weights that all ranks begin with."""
    return np.random.default_rng(99).normal(0, 1, WEIGHTS).astype(np.float32)


def gradients(xs: Array) -> Array:
    """Each rank's gradient at its weights."""
    problems = [make_problem(rank) for rank in range(len(xs))]
    return np.stack([s * s * (x - t) for x, (s, t) in zip(xs, problems, strict=True)])


class Quadratic(nn.Module):
    """A rank's loss, with the weights as a matrix and a bias."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        start = torch.from_numpy(make_start())
        self.matrix = nn.Parameter(start[:3000].clone().view(60, 50))
        self.bias = nn.Parameter(start[3000:].clone())
        self.scale, self.target = map(torch.from_numpy, make_problem(rank))

    def forward(self, inputs: Tensor | None = None) -> Tensor:
        weights = torch.cat([self.matrix.view(-1), self.bias])
        return (self.scale * (weights - self.target)).square().sum() / 2


def flat(model: nn.Module) -> Array:
    """All weights of a model as a copy."""
    return torch.cat([each.detach().view(-1) for each in model.parameters()]).numpy().copy()


# -- codes --------------------------------------------------------------------------------------


def quantise(row: Array) -> Array:
    """What is left of a row after 256 equal steps from its least to its largest number."""
    # A block that is not full counts a zero too.
    full = row if len(row) == 512 else np.append(row, np.float32(0))
    low, high = full.min(), full.max()
    span = np.float32(high - low) + np.float32(1e-7) * max(abs(low), abs(high)) + np.float32(1e-30)
    scale = np.float32(255) / span
    lower = np.round(high * scale) - np.float32(255)
    level = np.clip(np.round(row * scale) - lower, 0, 255).astype(np.uint8)
    return (level.astype(np.float32) + lower) / scale


def signs(row: Array) -> Array:
    """What is left of a row after one bit an element."""
    return np.where(row >= 0, 1, -1).astype(np.float32) * np.abs(row).mean(dtype=np.float32)


def keep(code, vector: Array) -> Array:
    """What is left of all weights: each tensor has blocks of its own, of 512."""
    tensors, start = [], 0
    for shape in SHAPES.values():
        tensor, start = vector[start : start + np.prod(shape)], start + np.prod(shape)
        tensors += [code(tensor[at : at + 512]) for at in range(0, len(tensor), 512)]
    return np.concatenate(tensors)


class NumpyMean:
    """Algorithm 1 of 1-bit Adam, lines 6 to 11: the mean, and what codes left out."""

    def __init__(self, ranks: int, code, feedback: bool) -> None:
        self.code, self.feedback = code, feedback
        self.errors = np.zeros((ranks, WEIGHTS), np.float32)
        self.server = np.zeros(WEIGHTS, np.float32)

    def __call__(self, vectors: Array) -> Array:
        sent = np.zeros_like(self.errors)
        for rank, vector in enumerate(vectors):
            whole = vector + self.errors[rank] if self.feedback else vector
            sent[rank] = keep(self.code, whole)
            self.errors[rank] = whole - sent[rank]
        mean = sent.mean(axis=0)
        if self.feedback:
            mean = mean + self.server
        answer = keep(self.code, mean)
        self.server = mean - answer
        return answer


# -- update rules: the weights after each step --------------------------------------------------


def run_mean(ranks: int) -> Iterator[Array]:
    """Gradient descent on the mean gradient."""
    x = make_start()
    for _ in range(STEPS):
        x = x - LR * gradients(np.stack([x] * ranks)).mean(axis=0)
        yield np.stack([x] * ranks)


def run_bytegrad(ranks: int) -> Iterator[Array]:
    x, mean = make_start(), NumpyMean(ranks, quantise, feedback=False)
    for _ in range(STEPS):
        x = x - np.float32(LR) * mean(gradients(np.stack([x] * ranks)))
        yield np.stack([x] * ranks)


def run_powersgd(ranks: int, rank: int, plain_steps: int) -> Iterator[Array]:
    """Algorithm 2 of PowerSGD, after steps on the mean gradient; the bias is not compressed."""
    x = make_start()
    q = torch.randn(50, rank, generator=torch.Generator().manual_seed(0)).numpy()
    errors = np.zeros((ranks, 60, 50), np.float32)
    for step in range(STEPS):
        each = gradients(np.stack([x] * ranks))
        update = each.mean(axis=0)
        if step >= plain_steps:
            m = each[:, :3000].reshape(ranks, 60, 50) + errors
            p, _ = np.linalg.qr((m @ q).mean(axis=0))
            q = np.mean([one.T @ p for one in m], axis=0)
            update[:3000] = (p @ q.T).reshape(-1)
            errors = m - p @ q.T
        x = x - LR * update
        yield np.stack([x] * ranks)


def run_decentralized(ranks: int, peers: str, interval: int) -> Iterator[Array]:
    """D-PSGD: x_i = mean over peers of x - lr * gradient at the old x_i."""
    xs = np.stack([make_start()] * ranks)
    for step in range(STEPS):
        each = gradients(xs)
        if step % interval == 0:
            xs = (
                xs.mean(axis=0, keepdims=True).repeat(ranks, 0)
                if peers == "all"
                else meet(xs, step // interval)
            )
        xs = xs - np.float32(LR) * each
        yield xs


def meet(xs: Array, number: int) -> Array:
    """Pairs (i, half + (i + number) mod half) average their weights."""
    half, after = len(xs) // 2, xs.copy()
    for i in range(half):
        other = half + (i + number) % half
        after[i] = after[other] = (xs[i] + xs[other]) / 2
    return after


def run_ring(ranks: int) -> Iterator[Array]:
    """DCD-PSGD with 1/3 for a rank itself and each neighbour."""
    xs = np.stack([make_start()] * ranks)
    third = np.float32(1 / 3)
    for _ in range(STEPS):
        mixed = third * xs + third * np.roll(xs, 1, axis=0) + third * np.roll(xs, -1, axis=0)
        z = mixed - np.float32(LR) * gradients(xs) - xs
        xs = xs + np.stack([keep(quantise, each) for each in z])
        yield xs


def run_qadam(
    ranks: int, warmup: int, bits: int, feedback: bool, decay: float = 0.05
) -> Iterator[Array]:
    """1-bit Adam's algorithm 1, with AdamW's weight decay."""
    x, mean = make_start(), NumpyMean(ranks, quantise if bits == 8 else signs, feedback)
    m, v = np.zeros_like(x), np.zeros_like(x)
    for t in range(1, STEPS + 1):
        each = gradients(np.stack([x] * ranks))
        x = x * np.float32(1 - LR * decay)
        if t <= warmup:
            g = each.mean(axis=0)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            corrected = v / (1 - 0.999**t)
        else:
            m = mean((0.9 * m + 0.1 * each).astype(np.float32))
            corrected = v / (1 - 0.999**warmup)
        x = x - LR * (m / (1 - 0.9**t)) / (np.sqrt(corrected) + 1e-8)
        x = x.astype(np.float32)
        yield np.stack([x] * ranks)
