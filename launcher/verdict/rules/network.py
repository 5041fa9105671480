"""Names, ports, addresses, interfaces and proxies: how nodes meet, and lose each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from launcher.contract.causes import Cause
from launcher.verdict.log_line import LogLine
from launcher.verdict.rules.rule import LIKELY, Meaning, table
from launcher.verdict.scan import SETTING

_STORE = (
    r"(?:TCPStore|\[c10d\]|c10d (?:store|rend)|client socket|\brendezvous|DistStore|DistNetwork"
    r"|store->get|etcd)(?!.*(?:clients joined|is alive, but)).*"
)
"""The store where nodes meet. If it fails, a port between nodes that have met is not the cause."""
_BACK = r"\b(?:127\.\d+\.\d+\.\d+|172\.1[78]\.0\.\d+)"
"""An address of this machine alone, or of Docker's bridge, which is the same on all machines."""
RULES = table(
    r"""
port-taken sure
  <EADDRINUSE>|no free TCP port|address already in use|another process is utilizing it
  Only one usage of each socket|port is already allocated|\b\d+ is (?:already )?in use\b
dns sure
  can't resolve|\bSERVFAIL\b|unknown host|no such host|getaddrinfo fail
  \[Errno -[235]\]|lookup .*i/o timeout|server misbehaving|server can't find|name does not resolve
  nodename nor servname|temporary failure in name resolution|No address associated with hostname
  NXDOMAIN|(?:name|host) (?:or service )?not (?:known|found)
  (?:unable to|could not) resolve (?!proxy)\W?\w
  can't find (?:an )?address|communications error to \S+#53|dns (?:lookup|resolution) failed
proxy sure
  ProxyError|(?<!\[)\bproxy (?:server )?.{0,40}(?:refused|denied)|407 Proxy Authentication Required
  resolve proxy|from proxy|Tunnel connection failed|Proxy CONNECT aborted|proxyconnect tcp
wrong-interface sure
  no (?:usable |socket |listening )*interfaces? (?:name )?found|neither AF_INET\(2\) nor
  NCCL_SOCKET_IFNAME.*(?:no match|not found|invalid)|unsupported gloo
  Unable to find (?:address|interface) for|(?:gloo|tensorpipe|\bTP\b).*(?:no such device|ioctl: )
wrong-interface likely
  ^(?!.*{store}).*\w*connect\w*\b.*{back}\S* (?:returned|failed|connection refused|.*timed out)
  bind.*cannot assign requested address|Using the loopback address as fallback
master-unreachable likely
  {store}(?:timed out|time-?out|failed to connect|no route|unreachable|refused|errno: 99)
  The connection to the C10d store has failed|(?:cannot|can't) connect to the store
  RendezvousConnectionError|Timed out initializing process group|retrieving ncclUniqueId .*timeout
  Timeout waiting for key: |connect\(\) timed out\. Orig|No more machines in the clust
  EtcdConnectionFailed
master-unreachable sign
  for clients\. \d+/\d+ clients joined => see what the others do before init_process_group
  Connection refused
  waiting for the (?:master|rendezvous)|failed to recv, got 0 bytes|^RuntimeError: Socket Timeout
firewall likely
  no route to host|Network is unreachable
  connectFullMesh failed|connect(?:\(\))?\b.* (?:connection timed out|timed out|ETIMEDOUT|no route)
  check the network and firew|couldn't connect to 'https?:|administratively prohibited
network-cut sign
  connection (?:was )?(?:reset|closed) by (?:remote )?peer|<EPIPE>|Socket closed|link is down
  remote process (?:exited or there was a network error|exiting prematurely)
network-cut likely
  ^\[agent\] store-lost|(?:Read|Write) error \[\S+\]:\d+: .*(?:timed out|No route)
network-cut root
  (?:NIC|\be(?:th|n)\w+:) Link (?:is )?Down|NETDEV WATCHDOG: \S+ .*timed out|link status definitely
  : lost carrier|: it is on no network: docker
clock-jump likely
  clocks? (?:jumped|skew|differ|wrong)|Token used before issued|clocksource: .*unstable
  not yet valid|RequestTimeTooSkewed
""",
    store=_STORE,
    back=_BACK,
)

_NO_NAME = re.compile(r"of \((?P<host>\S+), \d+\) cannot be retrieved \(gai error: -[235]")


def find_name(lines: Sequence[LogLine]) -> Iterator[Meaning]:
    """A host whose name was not found, and for which no line reports a failed connection. Pure."""
    for line in lines:
        if match := _NO_NAME.search(line.text):
            others = [other.text for other in lines if match["host"] in other.text]
            if not any("errno: 1" in text for text in others):
                yield Meaning(cause=Cause.DNS, weight=LIKELY, line=line)
                return


_EXPLAINED = (
    (
        Cause.PROXY,
        re.compile(rf"^{SETTING}.*_proxy", re.IGNORECASE),
        re.compile(r"urlopen error|HTTPS?Connection|MaxRetryError|HTTP Error (?:403|50[234])"),
    ),
    (
        Cause.WRONG_INTERFACE,
        re.compile(
            r"Using the loopback address as fallback"
            r"|NCCL INFO \S+ ?: Using (?:\[\d+\])?(?:lo|docker|virbr|veth|br-|cni)"
        ),
        re.compile(r"[Gg]loo|NCCL|DistBackendError"),
    ),
)
"""A cause, a line that is harmless by itself, and the exception that it may explain."""


def find_explained(lines: Sequence[LogLine]) -> Iterator[Meaning]:
    """An exception of a worker that a setting or choice in another line explains. Pure."""
    for cause, setting, pattern in _EXPLAINED:
        explanation = next(
            (line for line in lines if setting.search(f"{line.file}: {line.text}")), None
        )
        failed = (line for line in lines if line.raised and pattern.search(line.text))
        if explanation and (line := next(failed, None)):
            line = replace(line, text=f"{line.text}; {explanation.text}")
            yield Meaning(cause=cause, weight=LIKELY, line=line)
