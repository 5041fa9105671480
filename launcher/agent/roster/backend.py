"""Makes a node's handler from what torch's ``LaunchConfig`` says about the rendezvous."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousParameters
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from launcher.agent.roster.handler import RosterHandler
from launcher.agent.roster.settings import parse_rules
from launcher.agent.roster.store import Endpoint, StoreProcess, serve_forked


def create_handler(
    params: RendezvousParameters, make: Callable[..., RosterHandler] = RosterHandler
) -> RosterHandler:
    """Called by torch's registry; raises what ``parse_rules`` raises for a wrong configuration.

    Every key of ``params.config`` is described in ``Rules``. With ``is_host`` the store is
    started here, unless something serves the endpoint already.
    """
    rules = parse_rules(params.config, min_nodes=params.min_nodes, max_nodes=params.max_nodes)
    host, port = parse_rendezvous_endpoint(params.endpoint, 29400)
    store = None
    if rules.is_host and rules.store_pid:
        store = StoreProcess(pid=rules.store_pid, port=port)
    elif rules.is_host:
        with contextlib.suppress(RendezvousConnectionError):
            store = serve_forked(port)
    endpoint = Endpoint(host=host, port=store.port if store else port)
    try:
        return make(
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
