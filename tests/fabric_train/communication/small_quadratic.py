"""A quadratic of each rank for local SGD and DiLoCo; numpy can follow it without torch."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from fabric_train.communication.mean import average_gradients

SIZE = 5
Vector = np.ndarray


@dataclass(frozen=True)
class Quadratic:
    """1/2 (w - center)' matrix (w - center): as many samples as ranks weigh it."""

    matrix: Vector
    center: Vector

    def gradient(self, weights: Vector) -> Vector:
        return self.matrix @ (weights - self.center)

    def loss(self, weights: Tensor) -> Tensor:
        apart = weights - torch.from_numpy(self.center)
        return apart @ torch.from_numpy(self.matrix) @ apart / 2


def draw(rank: int) -> Quadratic:
    """One that no other rank has, with eigenvalues from 0.5 to 3."""
    random = np.random.default_rng(rank)
    basis, _ = np.linalg.qr(random.normal(size=(SIZE, SIZE)))
    matrix = basis @ np.diag(np.linspace(0.5, 3.0, SIZE)) @ basis.T
    return Quadratic(matrix=matrix, center=random.normal(size=SIZE))


class Weights(nn.Module):
    """A model that is nothing but its weights, in 64 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(SIZE, dtype=torch.float64))


def walk(
    model: Weights, optimizer: Any, meeting: Any, steps: int, share: float | None = None
) -> list[Vector]:
    """The weights of this rank after each step, with meetings between its own steps."""
    quadratic, path = draw(dist.get_rank()), []
    for number in range(steps):
        quadratic.loss(model.weights).backward()
        if not meeting.is_local(number):
            average_gradients(model.parameters(), share=share)
        optimizer.step()
        optimizer.zero_grad()
        meeting.after_step(number)
        path.append(model.weights.detach().numpy().copy())
    return path
