"""Names, ports, addresses, interfaces and proxies: how nodes meet, and lose each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from launcher.verdict.cause import FailureCause
from launcher.verdict.log_line import LogLine
from launcher.verdict.rules.rule import LIKELY, Meaning, table
from launcher.verdict.scan import SETTING

_STORE = (
    r"(?:TCPStore|\[c10d\]|c10d (?:store|rend)|client socket|\brendezvous|DistStore|DistNetwork"
    r"|store->get|etcd)(?!.*(?:clients joined|is alive, but)).*"
)
"""Where nodes meet: what cannot be reached there is no port between two nodes that have met."""
_BACK = r"\b(?:127\.\d+\.\d+\.\d+|172\.1[78]\.0\.\d+)"
"""Of this machine alone, or of Docker's bridge, which has the same addresses everywhere."""
RULES = table(
    r"""
permission sure
  socket has failed to \w+ .*<EACCES>
port-taken sure
  <EADDRINUSE>|address already in use|Only one usage of each socket|no free TCP port
  port is already allocated|\b\d+ is (?:already )?in use\b|no rendezvous store can
  server socket has failed to (?:listen|bind)(?!.*<(?:EAFNOSUPPORT|EADDRNOTAVAIL)>)
dns sure
  can't resolve|server can't find|\bSERVFAIL\b|dns (?:lookup|resolution) failed|NXDOMAIN
  \[Errno -[235]\]|temporary failure in name resolution|getaddrinfo fail|socket\.gaierror
  (?:name|host) (?:or service )?not (?:known|found)|nodename nor servname|unknown host|no such host
  No address associated with hostname|could not resolve host|name does not resolve
  NameResolutionError|failed to resolve|server misbehaving|lookup .*i/o timeout
  (?:name|hostname) (?:is not|cannot be|could not be) resolved|cannot be resolved or reach
dns sign
  The IPv[46] network addresses of \(\S+, \d+\) cannot be retrieved \(gai error
  The hostname of the client socket cannot be retrieved
proxy sure
  ProxyError|cannot connect to proxy|tunnel connection failed|unable to connect to proxy
  407 Proxy Authentication Required|proxyconnect tcp|from proxy|Proxy CONNECT aborted
  (?<!\[)\bproxy (?:server )?.{0,40}(?:refused|denied)
wrong-interface sure
  no (?:usable |socket |listening )*interfaces? (?:name )?found|neither AF_INET\(2\) nor
  unable to find (?:address|interface) for: |unable to (?:find|resolve) interface
  NCCL_SOCKET_IFNAME.*(?:no match|not found|invalid)|address family not supported
  (?:gloo|tensorpipe|\bTP\b).*(?:no such device|ioctl: )|ifa != nullptr|unsupported gloo
  found no \S+: correct interface|: found no .*address of another network
wrong-interface likely
  NCCL INFO (?:Bootstrap : Using|NET/Socket : Using \[0\]).*(?:docker|virbr|lo|br-)\w*:
  (?:connectFull.*remote=|connect to )\[?(?:127\.0\.1\.1|172\.1[78]\.0\.\d+)
  (?:socket\w*connect|connect(?:\(\))? to|connect).*{back}\S* (?:returned|failed)
  bind.*cannot assign requested address|Using the loopback address as fallback
master-unreachable likely
  {store}(?:timed out|time-?out|failed to connect|no route|unreachable|refused|errno: 99)
  The connection to the C10d store has failed|(?:cannot|can't) connect to the store
  RendezvousTimeoutError|RendezvousConnectionError|rendezvous-unreachable|Timeout waiting for key: 
  wait timeout after \d+ms, keys: |connect\(\) timed out\. Orig|Timed out initializing process group
  EtcdConnectionFailed|No more machines in the clust|no store answered|too few nodes came
  retrieving ncclUniqueId .*timeout
master-unreachable sign
  timed out after \d+ seconds waiting for clients\. \d+/\d+ clients joined|Connection refused
  <(?:ETIMEDOUT|ECONNREFUSED|EHOSTUNREACH|EADDRNOTAVAIL)>|waiting for the (?:master|rendezvous)
firewall likely
  no route to host|administratively prohibited
  connect(?:\(\))?\b.* (?:connection timed out|timed out|ETIMEDOUT|no route)
  socket(?:Poll|Progress|Start)Connect.*(?:timed out|ETIMEDOUT)|connectFullMesh failed
  ^error: \S+: \S+ cannot reach it at |check the network and firew|btl_tcp\w*.*connect\(\)
network-cut sign
  communicator was aborted|^(?:.*Rank \d+\] )?.*watchdog thread terminated with exception
  connection (?:was )?(?:reset|closed) by (?:remote )?peer|<ECONNRESET>|<EPIPE>|ncclRemoteError
  remote process exited or there was a network error|Socket closed|socket timeout|broken pipe
  recvValue failed|sendBytes failed|failed to recv, got 0 bytes|Network is unreachable|link is down
network-cut likely
  ^\[agent\] store-lost
network-cut root
  NIC Link is Down|: lost carrier|NETDEV WATCHDOG: \S+ .*timed out|link status definitely
clock-jump likely
  clocks? (?:jumped|skew|differ)|time (?:has been changed|jumped)|system clock (?:was|wr)
  RequestTimeTooSkewed|Token used before issued|not yet valid|clocksource: .*unstable
""",
    store=_STORE,
    back=_BACK,
)

_NO_NAME = re.compile(r"of \((?P<host>\S+), \d+\) cannot be retrieved \(gai error: -[235]")


def find_name(lines: Sequence[LogLine]) -> Iterator[Meaning]:
    """A host that was not found, and to which then no connection was even refused. Pure."""
    for line in lines:
        if found := _NO_NAME.search(line.text):
            others = [other.text for other in lines if found["host"] in other.text]
            if not any("errno: 1" in text for text in others):
                yield Meaning(cause=FailureCause.DNS, weight=LIKELY, line=line)
                return


_ASKED_BY_HTTP = re.compile(r"urlopen error|HTTPS?Connection|MaxRetryError|HTTP Error 50[234]")


def find_proxy(lines: Sequence[LogLine]) -> Iterator[Meaning]:
    """A request over HTTP that failed while a proxy was set for the workers. Pure."""
    proxy = next((x for x in lines if x.file == SETTING and "_proxy" in x.text.lower()), None)
    failed = (x for x in lines if x.raised and _ASKED_BY_HTTP.search(x.text))
    if proxy and (line := next(failed, None)):
        text = f"{line.text}; {proxy.text}"
        yield Meaning(cause=FailureCause.PROXY, weight=LIKELY, line=replace(line, text=text))
