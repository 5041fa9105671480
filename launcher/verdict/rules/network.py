"""Names, ports, addresses, interfaces and proxies: how nodes meet, and lose each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from launcher.verdict.cause import FailureCause
from launcher.verdict.rules.rule import LIKELY, ROOT, SIGN, SURE, Meaning, Meanings
from launcher.verdict.scan import SETTING, LogLine

_STORE = (
    r"(?:TCPStore|\[c10d\]|c10d (?:store|rend)|client socket|\brendezvous|DistStore|DistNetwork"
    r"|store->get|etcd)(?!.*(?:clients joined|is alive, but)).*"
)
"""Where nodes meet: what cannot be reached there is no port between two nodes that have met."""
_BACK = r"\b(?:127\.\d+\.\d+\.\d+|172\.1[78]\.0\.\d+)"
"""Of this machine alone, or of Docker's bridge, which has the same addresses everywhere."""
MEANINGS: Meanings = {
    (FailureCause.PERMISSION, SURE): (r"socket has failed to \w+ .*errno: 13\b",),
    (FailureCause.PORT_TAKEN, SURE): (
        r"EADDRINUSE|address already in use|\[Errno 98\]|errno: 98\b|Only one usage of each socket",
        r"port is already allocated|\b\d+ is (?:already )?in use\b",
        r"no free TCP port|no rendezvous store can",
        r"server socket has failed to (?:listen|bind)(?!.*errno: (?:97|99))",
    ),
    (FailureCause.DNS, SURE): (
        r"socket\.gaierror|\[Errno -[235]\]|temporary failure in name resolution|getaddrinfo fail",
        r"name or service not known|nodename nor servname|No address associated with hostname",
        r"could not resolve host|unknown host|no such host|host not found|name does not resolve",
        r"NameResolutionError|failed to resolve|NXDOMAIN|server misbehaving|lookup .*i/o timeout",
        r"(?:name|hostname) (?:is not|cannot be|could not be) resolved|cannot be resolved or reach",
    ),
    (FailureCause.DNS, SIGN): (
        r"The IPv[46] network addresses of \(\S+, \d+\) cannot be retrieved \(gai error",
        r"The hostname of the client socket cannot be retrieved",
    ),
    (FailureCause.PROXY, SURE): (
        r"ProxyError|cannot connect to proxy|tunnel connection failed|unable to connect to proxy",
        r"407 Proxy Authentication Required|proxyconnect tcp|from proxy|Proxy CONNECT aborted",
        r"\bproxy (?:server )?.{0,40}(?:refused|denied)",
    ),
    (FailureCause.WRONG_INTERFACE, SURE): (
        r"no (?:usable |socket |listening )*interfaces? (?:name )?found|neither AF_INET\(2\) nor",
        r"unable to find (?:address|interface) for: |unable to (?:find|resolve) interface",
        r"NCCL_SOCKET_IFNAME.*(?:no match|not found|invalid)|address family not supported",
        r"(?:gloo|tensorpipe|\bTP\b).*(?:no such device|ioctl: )|ifa != nullptr|unsupported gloo",
        r"found no \S+: correct interface|: found no .*address of another network",
    ),
    (FailureCause.WRONG_INTERFACE, LIKELY): (
        r"NCCL INFO (?:Bootstrap : Using|NET/Socket : Using \[0\]).*(?:docker|virbr|lo|br-)\w*:",
        r"(?:connectFull.*remote=|connect to )\[?(?:127\.0\.1\.1|172\.1[78]\.0\.\d+)",
        r"(?:socket\w*connect|connect(?:\(\))? to|connect).*" + _BACK + r"\S* (?:returned|failed)",
        r"bind.*cannot assign requested address|Using the loopback address as fallback",
    ),
    (FailureCause.MASTER_UNREACHABLE, LIKELY): (
        _STORE
        + r"(?:timed out|time-?out|failed to connect|no route|unreachable|refused|errno: 99)",
        r"The connection to the C10d store has failed|(?:cannot|can't) connect to the store",
        r"RendezvousTimeoutError|RendezvousConnectionError|rendezvous-unreachable",
        r"Timeout waiting for key: |wait timeout after \d+ms, keys: |connect\(\) timed out\. Orig",
        r"Timed out initializing process group|EtcdConnectionFailed|No more machines in the clust",
        r"no store answered|too few nodes came|retrieving ncclUniqueId .*timeout",
    ),
    (FailureCause.MASTER_UNREACHABLE, SIGN): (
        r"timed out after \d+ seconds waiting for clients\. \d+/\d+ clients joined",
        r"Connection refused|\[Errno (?:110|111|113|99)\]|waiting for the (?:master|rendezvous)",
    ),
    (FailureCause.FIREWALL, LIKELY): (
        r"no route to host|EHOSTUNREACH|administratively prohibited",
        r"connect(?:\(\))?\b.* (?:connection timed out|timed out|ETIMEDOUT|no route)",
        r"socket(?:Poll|Progress|Start)Connect.*(?:timed out|ETIMEDOUT)",
        r"connectFullMesh failed|^error: \S+: \S+ cannot reach it at |check the network and firew",
        r"btl_tcp\w*.*connect\(\)",
    ),
    (FailureCause.NETWORK_CUT, SIGN): (
        r"connection (?:was )?(?:reset|closed) by (?:remote )?peer|ECONNRESET|broken pipe",
        r"ncclRemoteError|remote process exited or there was a network error|Socket closed",
        r"socket timeout|recvValue failed|sendBytes failed|failed to recv, got 0 bytes",
        r"Network is unreachable|link is down|application timeout caused pair closure",
    ),
    (FailureCause.NETWORK_CUT, LIKELY): (r"^\[agent\] store-lost",),
    (FailureCause.NETWORK_CUT, ROOT): (
        r"NIC Link is Down|: lost carrier|NETDEV WATCHDOG: \S+ .*timed out|link status definitely",
    ),
    (FailureCause.CLOCK_JUMP, LIKELY): (
        r"clocks? (?:jumped|skew|differ)|time (?:has been changed|jumped)|system clock (?:was|wr)",
        r"not yet valid|RequestTimeTooSkewed|Token used before issued|too far in the (?:past|fut)",
        r"unsynchronized clock|clocksource: .*unstable",
    ),
}

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
