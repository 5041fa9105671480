"""Names, ports, addresses, interfaces and proxies: how nodes meet, and lose each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from launcher.verdict.cause import FailureCause
from launcher.verdict.rules.rule import LIKELY, ROOT, SIGN, SURE, Meaning, Meanings
from launcher.verdict.scan import SETTING, LogLine

MEANINGS: Meanings = {
    (FailureCause.PORT_TAKEN, SURE): (
        r"EADDRINUSE|[Aa]ddress already in use|\[Errno 98\]",
        r"port is already allocated",
        r"server socket has failed to (?:listen|bind)",
    ),
    (FailureCause.DNS, SURE): (
        r"socket\.gaierror|\[Errno -[235]\]|Temporary failure in name resolution",
        r"Name or service not known|nodename nor servname|No address associated with hostname",
        r"[Cc]ould not resolve host|Unknown host|no such host|Host not found",
        r"NameResolutionError|getaddrinfo failed|[Ff]ailed to resolve",
    ),
    (FailureCause.DNS, SIGN): (
        r"The IPv[46] network addresses of \(\S+, \d+\) cannot be retrieved \(gai error",
        r"The hostname of the client socket cannot be retrieved",
    ),
    (FailureCause.PROXY, SURE): (
        r"ProxyError|Cannot connect to proxy|Tunnel connection failed",
        r"407 Proxy Authentication Required|proxyconnect tcp",
        r"Unable to connect to proxy|response from proxy|[Pp]roxy .*(?:refused|denied)",
    ),
    (FailureCause.WRONG_INTERFACE, SURE): (
        r"[Nn]o (?:usable |socket )*interface (?:name )?found",
        r"No interface found (?:in the same subnet|matching)|NET/Socket : [Nn]o interface found",
        r"ncclSocketInit: connecting to address +with family|Address family not supported",
        r"Unable to find address for: \S+|Unable to (?:find|resolve) interface",
        r"NCCL_SOCKET_IFNAME.*(?:no match|not found|invalid)",
        r"(?:Gloo|gloo|TP|tensorpipe).*(?:[Nn]o such device|ioctl: )",
    ),
    (FailureCause.WRONG_INTERFACE, LIKELY): (
        r"NCCL INFO (?:Bootstrap : Using|NET/Socket : Using \[0\]).*(?:docker|virbr|lo|br-)\w*:",
        r"connect(?:Full)?.*(?:remote=|to )\[?(?:127\.0\.[01]\.1|172\.17\.0\.\d+)",
        r"(?:socketStartConnect|ncclSocketConnect|Connect to|Connect) .*"
        r"(?:127\.0\.[01]\.1|172\.17\.0\.\d+)\S* failed",
    ),
    (FailureCause.FIREWALL, LIKELY): (
        r"[Nn]o route to host|EHOSTUNREACH|[Aa]dministratively prohibited",
        r"socket(?:Poll|Progress|Start)Connect.*(?:Connection timed out|ETIMEDOUT)",
        r"(?:Connect|connect) to \S+<\d+> failed : (?:Connection timed out|No route to host)",
        r"Call to connect (?:to \S+ )?failed : (?:Connection timed out|No route)",
        r"connectFullMesh failed|^error: \S+: \S+ cannot reach it at ",
    ),
    (FailureCause.MASTER_UNREACHABLE, LIKELY): (
        r"client socket has (?:timed out|failed to connect)",
        r"RendezvousTimeoutError|RendezvousConnectionError|rendezvous-unreachable",
        r"The connection to the C10d store has failed",
        r"Timeout waiting for key: .*default_pg|wait timeout after \d+ms, keys: .*(?:store_based_)?"
        r"(?:barrier|rank)|Timed out initializing process group in store based barrier",
        r"no store answered|too few nodes came",
        r"DistNetworkError: .*(?:timed out|refused).*(?:29500|29400|client socket)",
    ),
    (FailureCause.MASTER_UNREACHABLE, SIGN): (
        r"[Tt]imed out after \d+ seconds waiting for clients\. \d+/\d+ clients joined",
    ),
    (FailureCause.NETWORK_CUT, SIGN): (
        r"[Cc]onnection reset by peer|[Cc]onnection closed by peer|ECONNRESET|Broken pipe",
        r"ncclRemoteError|remote process exited or there was a network error",
        r"[Ss]ocket [Tt]imeout|recvValue failed|sendBytes failed|failed to recv, got 0 bytes",
        r"Network is unreachable|NETDEV WATCHDOG|[Ll]ink is [Dd]own",
    ),
    (FailureCause.NETWORK_CUT, LIKELY): (r"^\[agent\] store-lost",),
    (FailureCause.NETWORK_CUT, ROOT): (
        r"kernel: .*(?:NIC Link is Down|[Ll]ost carrier)|NETDEV WATCHDOG: \S+ .*timed out",
    ),
    (FailureCause.CLOCK_JUMP, LIKELY): (
        r"[Cc]locks? (?:jumped|skew|differ)|[Tt]ime (?:has been changed|jumped)|clock skew",
        r"System clock (?:was stepped|wrong)|[Cc]ertificate is not yet valid",
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
