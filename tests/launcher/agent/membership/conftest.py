"""A coordinator in a process of its own, and nodes of this process that meet there."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from launcher.agent.membership.client import Client
from launcher.agent.membership.group import Membership, Rules
from launcher.agent.membership.process import CoordinatorProcess, serve_forked

RUN, TOKEN = "digits-1", "s3cret"


class Bench:
    """One coordinator, and nodes in threads; ``config`` is what all of them are told."""

    def __init__(self, least: int = 1, most: int = 1, **config: Any) -> None:
        given = {"detection_limit_s": 2.0, "last_call_s": 2.0, "growth_pause_s": 0.0} | config
        self.rules = Rules(min_nodes=least, max_nodes=most, **given)
        self.ending = ExitStack()
        self.served = self.serve()

    def serve(self) -> CoordinatorProcess:
        """Another coordinator of the same run."""
        served = serve_forked(0, self.rules, RUN, TOKEN)
        self.ending.callback(served.stop)
        return served

    def node(
        self,
        index: int = 0,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        run: str = RUN,
        token: str = TOKEN,
        served: CoordinatorProcess | None = None,
        **config: Any,
    ) -> Client:
        at = host, port or (served or self.served).port, run
        rules = replace(self.rules, node_index=index, **config)
        node = Client(*at, rules, token, served=served)
        self.ending.callback(node.end)
        node.begin()
        return node

    def meet(self, *indexes: int) -> list[Client]:
        nodes = [self.node(index) for index in indexes]
        together(*nodes)
        return nodes


def together(*nodes: Client) -> list[Membership]:
    """All of them in one rendezvous; raises what any of them raises."""
    with ThreadPoolExecutor() as pool:
        return [mine for mine in pool.map(lambda node: node.meet(), nodes) if mine]


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    with ExitStack() as stack:

        def bench(*nnodes: int, **config: Any) -> Bench:
            one = Bench(*nnodes, **config)
            stack.callback(one.ending.close)
            return one

        yield bench
