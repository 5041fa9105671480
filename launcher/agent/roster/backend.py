"""Makes the backend ``roster`` known to torch: ``LaunchConfig(rdzv_backend="roster", ...)``."""

from __future__ import annotations

import contextlib
import logging
import os
import socket

from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from launcher.agent.roster.handler import BACKEND, RosterHandler
from launcher.agent.roster.settings import Rules, parse_settings
from launcher.agent.roster.store import (
    Endpoint,
    StoreProcess,
    name_descriptor_limit,
    serve_forked,
)

DEFAULT_PORT = 29400
log = logging.getLogger(__name__)


def create_handler(params: RendezvousParameters) -> RosterHandler:
    """What torch's registry calls; raises ``ValueError`` for a wrong configuration.

    Every key of ``params.config`` is described in ``RosterSettings``. With ``is_host`` the store is
    started here, unless something serves the endpoint already.
    """
    settings = parse_settings(params.config, os.environ)
    rules = Rules(**vars(settings), min_nodes=params.min_nodes, max_nodes=params.max_nodes)
    host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    store = None
    if settings.is_host and (few := name_descriptor_limit(rules.max_nodes)):
        log.warning(few)
    if settings.is_host and settings.store_pid:
        store = StoreProcess(pid=settings.store_pid, port=port)
    elif settings.is_host:
        with contextlib.suppress(RendezvousConnectionError):
            store = serve_forked(port, settings.host)
    endpoint = Endpoint(host=host, port=store.port if store else port)
    try:
        return RosterHandler(
            endpoint=endpoint,
            run_id=params.run_id,
            # Ended by the resolver's own limit.
            local_addr=params.local_addr or socket.getfqdn(),
            rules=rules,
            store=store,
        )
    except BaseException:
        if store:
            store.stop()
        raise


def register() -> None:
    """Makes ``rdzv_backend="roster"`` known to torch in this process; idempotent."""
    rendezvous_handler_registry.register(BACKEND, create_handler)
