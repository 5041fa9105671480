"""A coordinator in a process of its own, and nodes of this process that meet there."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters

from launcher.agent.membership.handler import RosterHandler, create_handler
from launcher.agent.membership.process import serve_forked
from launcher.agent.membership.settings import parse_rules

RUN, TOKEN = "digits-1", "s3cret"


class Bench:
    """One coordinator, and nodes in threads; ``config`` is what all of them are told."""

    def __init__(self, least: int = 1, most: int = 1, **config: Any) -> None:
        self.nnodes = (least, most)
        self.config = {"detection_limit_s": 2.0, "last_call_s": 2.0, "growth_pause_s": 0.0} | config
        self.ending = ExitStack()
        rules = parse_rules(self.config, min_nodes=least, max_nodes=most)
        self.served = serve_forked(0, rules, RUN, TOKEN)
        self.ending.callback(self.served.stop)

    def params(self, index: int = 0, **config: Any) -> RendezvousParameters:
        at = f"{config.pop('host', '127.0.0.1')}:{config.pop('port', self.served.port)}"
        config = {**self.config, "node_index": index, **config}
        run = config.pop("run", RUN)
        return RendezvousParameters("roster", at, run, *self.nnodes, "127.0.0.1", **config)

    def node(self, index: int = 0, *, token: str = TOKEN, **config: Any) -> RosterHandler:
        node = create_handler(self.params(index, **config), token=token)
        self.ending.callback(node.end)
        return node

    def meet(self, *indexes: int) -> list[RosterHandler]:
        nodes = [self.node(index) for index in indexes]
        together(*nodes)
        return nodes


def together(*nodes: RosterHandler) -> list[RendezvousInfo]:
    """All of them in one rendezvous; raises what any of them raises."""
    with ThreadPoolExecutor() as pool:
        return [*pool.map(lambda node: node.next_rendezvous(), nodes)]


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    with ExitStack() as stack:

        def bench(*nnodes: int, **config: Any) -> Bench:
            one = Bench(*nnodes, **config)
            stack.callback(one.ending.close)
            return one

        yield bench
