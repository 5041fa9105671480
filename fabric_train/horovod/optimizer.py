"""DistributedOptimizer: any torch optimizer, whose gradients are reduced while they are computed.

A hook on each parameter counts its backward passes. When all parameters of a bucket are ready, the
bucket is handed to the engine, which reduces it beside the rest of the backward pass; ``step``
waits for all buckets. A rank sends its gradients once for each step, in float16 with
``Compression.fp16``, and needs memory for one more copy of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fabric_train.horovod import context
from fabric_train.horovod.collectives import ReduceOp
from fabric_train.horovod.engine import Handle
from fabric_train.horovod.operations import (
    Adasum,
    Average,
    Compression,
    plan_reduce,
    reduce_in_place,
)

BUCKET_BYTES = 25 << 20
"""The same as in DistributedDataParallel; HOROVOD_FUSION_THRESHOLD changes it."""

_made = 0


class Bucket:
    """Parameters whose gradients travel together."""

    def __init__(self, name: str, parameters: Sequence[Tensor]) -> None:
        self.name, self.parameters = name, list(parameters)
        self.ready: set[Tensor] = set()
        self.sent: tuple[Handle, list[Tensor], list[Any]] | None = None

    def send(self, compression: Any, reduce: Callable[[str, list[Tensor]], Handle]) -> None:
        """Hands the gradients to the engine, with zeros where this rank has computed none."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        grads = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        pairs = [compression.compress(grad) for grad in grads]
        small = [tensor for tensor, _ in pairs]
        self.sent = reduce(self.name, small), grads, [made for _, made in pairs]

    def receive(self, compression: Any) -> None:
        """Waits for the reduced gradients and puts them into the parameters."""
        assert self.sent is not None
        (handle, grads, made), self.sent = self.sent, None
        self.ready.clear()
        for grad, tensor, ctx in zip(grads, handle.wait(), made, strict=True):
            if tensor.data_ptr() != grad.data_ptr():
                grad.copy_(compression.decompress(tensor, ctx))


class _Distributed(Optimizer):
    """The class that is mixed in before the optimizer's own class."""

    def _set_up(self, names: dict[Tensor, str], buckets: list[Bucket], **settings: Any) -> None:
        self._names = names
        self._compression = settings["compression"]
        self._op: ReduceOp = settings["op"]
        self._predivide: float = settings["predivide"]
        self.backward_passes_per_step: int = settings["passes"]
        self._buckets = buckets
        self._passes: dict[Tensor, int] = {}
        self._should_synchronize = True
        self._hooks = []
        for bucket in buckets if self._op is not Adasum else ():
            for parameter in bucket.parameters:
                hook = self._make_hook(bucket)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(hook))

    def _make_hook(self, bucket: Bucket) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            done = self._passes[parameter] = self._passes.get(parameter, 0) + 1
            name = self._names.get(parameter, "a parameter")
            if done > self.backward_passes_per_step:
                raise AssertionError(
                    f"the gradient of {name} was computed more than backward_passes_per_step "
                    "times before call to step(): increase it to accumulate gradients locally"
                )
            if parameter.grad is not None and parameter.grad.is_sparse:
                raise NotImplementedError(f"the gradient of {name} is sparse: give sparse=False")
            if done == self.backward_passes_per_step:
                bucket.ready.add(parameter)
                if len(bucket.ready) == len(bucket.parameters):
                    bucket.send(self._compression, self._reduce)

        return hook

    def _reduce(self, name: str, grads: list[Tensor]) -> Handle:
        before, after = 1.0, 1.0
        if self._op is Average:
            before, after = 1.0 / self._predivide, self._predivide
        return reduce_in_place(grads, name, self._op, before, after)

    def synchronize(self) -> None:
        """Waits for the reduced gradients, so that a script can clip them before ``step``."""
        if self._op is Adasum:
            return
        for bucket in self._buckets:
            if bucket.sent is None:
                bucket.send(self._compression, self._reduce)
        for bucket in self._buckets:
            bucket.receive(self._compression)
        self._passes.clear()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it ``step`` does not call ``synchronize``, because the script has."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Any = None) -> Any:
        """The optimizer's step with the gradients of all ranks."""
        if self._op is Adasum:
            return self._step_by_adasum(closure)
        if self._should_synchronize:
            self.synchronize()
        return super().step(closure)

    def _step_by_adasum(self, closure: Any) -> Any:
        """Makes a step on this rank alone, then combines the ranks' weight changes by Adasum.

        It combines changes and not gradients, so that the optimizer's own scaling is included.
        """
        parameters = [p for bucket in self._buckets for p in bucket.parameters]
        before = [parameter.detach().clone() for parameter in parameters]
        result = super().step(closure)
        with torch.no_grad():
            changes = [p - start for p, start in zip(parameters, before, strict=True)]
            pairs = [self._compression.compress(change) for change in changes]
            small = [tensor for tensor, _ in pairs]
            handle = reduce_in_place(small, self._buckets[0].name, Adasum)
            changed = zip(parameters, before, handle.wait(), pairs, strict=True)
            for parameter, start, change, (_, ctx) in changed:
                parameter.copy_(start + self._compression.decompress(change, ctx))
        return result

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clears the gradients; raises AssertionError while they are on their way."""
        if self._passes:
            raise AssertionError(
                "zero_grad() was called after loss.backward() and before step() or synchronize()"
            )
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Loads a state, and forgets gradients that were on their way."""
        self._passes.clear()
        for bucket in self._buckets:
            bucket.sent = None
            bucket.ready.clear()
        self._should_synchronize = True
        super().load_state_dict(*args, **kwargs)


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
) -> Any:
    """An optimizer of the same class and state, that reduces gradients over all ranks.

    With ``op=Adasum`` each rank makes a step of its own, and their changes are combined. Gradients
    of several backward passes are added up, as in Horovod. ``gradient_predivide_factor`` is the
    part of the division by ``size()`` that is done before the sum, against overflow in float16.
    ``named_parameters`` are for messages. Raises ValueError for a factor without an average.
    """
    op = ReduceOp(op)
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    plan_reduce([], None, op)
    global _made
    _made += 1
    buckets = _fill_buckets(f"optimizer.{_made}", optimizer)
    cls: Any = type(optimizer.__class__.__name__, (_Distributed, optimizer.__class__), {})
    made = cls.__new__(cls)
    # The same groups and state, so that earlier schedulers keep working. They have wrapped ``step``
    # on their optimizer object; a copy of that wrapper would hide this class's ``step``.
    made.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k != "step"})
    made._set_up(
        {parameter: name for name, parameter in named_parameters or ()},
        buckets if context.size() > 1 or op is Adasum else [],
        compression=compression,
        op=op,
        predivide=gradient_predivide_factor,
        passes=backward_passes_per_step,
    )
    return made


def _fill_buckets(name: str, optimizer: Optimizer) -> list[Bucket]:
    """Buckets in the order of the backward pass: the last parameters first."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    limit = int(os.environ.get("HOROVOD_FUSION_THRESHOLD") or BUCKET_BYTES)
    filled: list[list[Tensor]] = []
    for parameter in reversed(parameters):
        last = filled[-1] if filled else []
        fits = sum(map(_bytes_of, last)) + _bytes_of(parameter) <= limit
        if last and fits and last[0].dtype == parameter.dtype:
            last.append(parameter)
        else:
            filled.append([parameter])
    return [Bucket(f"{name}.bucket.{number}", each) for number, each in enumerate(filled)]


def _bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
