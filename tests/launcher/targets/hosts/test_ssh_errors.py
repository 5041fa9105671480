"""What ssh says, as people read it: which host, what is wrong, what to type."""

import pytest

from launcher.targets.hosts.ssh_errors import explain


@pytest.mark.parametrize(
    ("code", "said", "what", "fix"),
    [
        (255, "No ED25519 host key is known for gpu1\r\nHost key verification failed.", "not known",
         "--accept-new-host-keys"),
        (255, "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
         "another one than before", "ssh-keygen -R gpu1"),
        (255, "root@gpu1: Permission denied (publickey).", "does not accept any key",
         "ssh-copy-id gpu1"),
        (255, "ssh: Could not resolve hostname gpu1: Name or service not known", "not resolved",
         "HostName"),
        (255, "ssh: connect to host gpu1 port 22: Connection refused", "nothing listens", "sshd"),
        (255, "ssh: connect to host gpu1 port 22: No route to host", "does not answer", "ssh -v"),
        (255, "ssh: connect to host gpu1 port 22: Connection timed out", "does not answer",
         "ssh -v"),
        (255, "kex_exchange_identification: Connection closed by remote host", "before the log-in",
         "MaxStartups"),
        (255, "/x/config: line 1: Bad configuration option: foo", "configuration", "ssh -G gpu1"),
        (127, "bash: line 1: exec: python3: not found", "has no python3",
         "first on PATH in an ssh session: ssh gpu1 python3 --version"),
        (1, "python3 is 3.6 there, 3.9 is needed\n", "gpu1: python3 is 3.6 there, 3.9 is needed",
         "install a newer python3 there"),
        (1, "OSError: [Errno 28] No space left on device", "No space left on device", "df -h"),
        (1, "python3: Command not found.", "has no python3", "ssh gpu1 python3 --version"),
        (255, "bash: module: command not found\nclient_loop: send disconnect: Broken pipe",
         "Broken pipe", "ssh -v gpu1 true"),
        (1, "PermissionError: [Errno 13] Permission denied: '/data/bin'", "denied: '/data/bin'",
         "ssh gpu1 python3 --version"),
        (255, "", "exit code 255 and printed nothing, as when the network is cut",
         "ssh -v gpu1 true"),
    ],
)  # fmt: skip
def test_an_error_names_the_host_the_cause_and_the_fix(code, said, what, fix):
    told, hint = explain("gpu1", code, said)
    assert told.startswith("gpu1: ")
    assert what in told or what in hint
    assert fix in hint
