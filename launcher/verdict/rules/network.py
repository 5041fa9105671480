"""Names, ports, addresses, interfaces and proxies: how nodes meet, and lose each other."""

from launcher.verdict.cause import Cause
from launcher.verdict.rules.rule import Weight, rows

RULES = (
    *rows(
        Cause.PORT_TAKEN,
        Weight.SURE,
        r"EADDRINUSE|[Aa]ddress already in use|\[Errno 98\]",
        r"port is already allocated",
        r"server socket has failed to (?:listen|bind)",
    ),
    *rows(
        Cause.DNS,
        Weight.SURE,
        r"socket\.gaierror|\[Errno -[235]\]|Temporary failure in name resolution",
        r"Name or service not known|nodename nor servname|No address associated with hostname",
        r"[Cc]ould not resolve host|Unknown host|no such host|Host not found",
        r"NameResolutionError|getaddrinfo failed|[Ff]ailed to resolve",
    ),
    *rows(
        Cause.DNS,
        Weight.SIGN,
        r"The IPv[46] network addresses of \(\S+, \d+\) cannot be retrieved \(gai error",
        r"The hostname of the client socket cannot be retrieved",
    ),
    *rows(
        Cause.PROXY,
        Weight.SURE,
        r"ProxyError|Cannot connect to proxy|Tunnel connection failed",
        r"407 Proxy Authentication Required|proxyconnect tcp",
        r"Unable to connect to proxy|response from proxy|[Pp]roxy .*(?:refused|denied)",
    ),
    *rows(
        Cause.WRONG_INTERFACE,
        Weight.SURE,
        r"Bootstrap : no socket interface found|[Nn]o (?:usable |socket )?interface (?:name )?found",
        r"No interface found (?:in the same subnet|matching)|NET/Socket : [Nn]o interface found",
        r"Unable to find address for: \S+|Unable to (?:find|resolve) interface",
        r"NCCL_SOCKET_IFNAME.*(?:no match|not found|invalid)",
        r"(?:Gloo|gloo|TP|tensorpipe).*(?:[Nn]o such device|ioctl: )",
    ),
    *rows(
        Cause.WRONG_INTERFACE,
        Weight.LIKELY,
        r"NCCL INFO (?:Bootstrap : Using|NET/Socket : Using \[0\])(?:.*)?(?:docker|virbr|lo|br-)\w*:",
        r"connect(?:Full)?.*(?:remote=|to )\[?(?:127\.0\.[01]\.1|172\.17\.0\.\d+)",
        r"(?:socketStartConnect|ncclSocketConnect|Connect to|Connect) .*"
        r"(?:127\.0\.[01]\.1|172\.17\.0\.\d+)\S* failed",
    ),
    *rows(
        Cause.FIREWALL,
        Weight.LIKELY,
        r"[Nn]o route to host|EHOSTUNREACH|[Aa]dministratively prohibited",
        r"socket(?:Poll|Progress|Start)Connect.*(?:Connection timed out|ETIMEDOUT)",
        r"(?:Connect|connect) to \S+<\d+> failed : (?:Connection timed out|No route to host)",
        r"connectFullMesh failed",
    ),
    *rows(
        Cause.MASTER_UNREACHABLE,
        Weight.LIKELY,
        r"client socket has (?:timed out|failed to connect)",
        r"[Tt]imed out after \d+ seconds waiting for clients\. \d+/\d+ clients joined",
        r"RendezvousTimeoutError|RendezvousConnectionError|rendezvous-unreachable",
        r"The connection to the C10d store has failed",
        r"Timeout waiting for key: .*default_pg|wait timeout after \d+ms, keys: .*(?:store_based_)?"
        r"(?:barrier|rank)|Timed out initializing process group in store based barrier",
        r"no store answered|too few nodes came",
        r"DistNetworkError: .*(?:timed out|refused).*(?:29500|29400|client socket)",
    ),
    *rows(
        Cause.NETWORK_CUT,
        Weight.SIGN,
        r"[Cc]onnection reset by peer|[Cc]onnection closed by peer|ECONNRESET|Broken pipe",
        r"ncclRemoteError|remote process exited or there was a network error",
        r"[Ss]ocket [Tt]imeout|recvValue failed|sendBytes failed|failed to recv, got 0 bytes",
        r"Network is unreachable|NETDEV WATCHDOG|[Ll]ink is [Dd]own",
    ),
    *rows(
        Cause.NETWORK_CUT,
        Weight.ROOT,
        r"kernel: .*(?:NIC Link is Down|[Ll]ost carrier)|NETDEV WATCHDOG: \S+ .*timed out",
    ),
    *rows(
        Cause.CLOCK_JUMP,
        Weight.LIKELY,
        r"[Cc]locks? (?:jumped|skew|differ)|[Tt]ime (?:has been changed|jumped)|clock skew",
        r"System clock (?:was stepped|wrong)|[Cc]ertificate is not yet valid",
        r"unsynchronized clock|clocksource: .*unstable",
    ),
)
