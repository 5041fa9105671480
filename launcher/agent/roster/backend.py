"""Makes the backend ``roster`` known to torch. Once per process, before ``elastic_launch``::

    registration = register(on_membership)
    elastic_launch(LaunchConfig(rdzv_backend="roster", ...), ...)
    registration.handler                       # the engine's view of the run

Set TORCH_ELASTIC_WORKER_IDENTICAL=1 in the agent's environment: torch then numbers the workers
without the store, in which it would wait for a node that is lost at that moment.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from launcher.agent.roster.handler import BACKEND, RosterHandler
from launcher.agent.roster.head import Membership
from launcher.agent.roster.settings import parse_settings
from launcher.agent.roster.store import Endpoint, serve_forked

DEFAULT_PORT = 29400


def create_handler(
    params: RendezvousParameters, on_membership: Callable[[Membership], None] | None = None
) -> RosterHandler:
    """What torch's registry calls; raises ``ValueError`` for a wrong configuration.

    Every key of ``params.config`` is described in ``RosterSettings``. With ``is_host`` the store is
    started here, unless something serves the endpoint already.
    """
    settings = parse_settings(params.config)
    host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    store = None
    if settings.is_host:
        with contextlib.suppress(RendezvousConnectionError):
            store = serve_forked(port, settings.host)
    endpoint = Endpoint(host=host, port=store.port if store else port)
    try:
        return RosterHandler(
            endpoint=endpoint,
            run_id=params.run_id,
            min_nodes=params.min_nodes,
            max_nodes=params.max_nodes,
            local_addr=params.local_addr or socket.getfqdn(),
            settings=settings,
            store=store,
            on_membership=on_membership,
        )
    except BaseException:
        if store:
            store.stop()
        raise


class Registration:
    """Gives the engine the handler that torch makes for itself.

    ``on_membership`` is called with each new membership before any worker of it starts: the place
    to write down its generation for the workers.
    """

    def __init__(self) -> None:
        self.handler: RosterHandler | None = None
        self.on_membership: Callable[[Membership], None] | None = None

    def create(self, params: RendezvousParameters) -> RosterHandler:
        self.handler = create_handler(params, self.on_membership)
        return self.handler


_registration = Registration()


def register(on_membership: Callable[[Membership], None] | None = None) -> Registration:
    """Makes ``rdzv_backend="roster"`` known to torch in this process; idempotent."""
    _registration.on_membership = on_membership
    rendezvous_handler_registry.register(BACKEND, _registration.create)
    return _registration
