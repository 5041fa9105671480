"""What ssh says, as people read it: which host, what is wrong, what to type."""

import pytest

from launcher.targets.hosts.inventory.inventory import Inventory
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh.client import Ssh
from launcher.targets.hosts.ssh.errors import explain


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


def test_a_fix_leads_to_the_host_as_the_inventory_says():
    host = Host(name="gpu1", user="ml", port=2222, identity="/keys/a b")
    ssh = Ssh(Inventory(hosts=(host,), ssh_config="my.cfg"))
    way = "-F my.cfg -p 2222 -i '/keys/a b' ml@gpu1"
    _, hint = explain("gpu1", 255, "Permission denied (publickey).", ssh.entering(host))
    assert hint.startswith(f"ssh-copy-id {way}, or")
    assert hint.endswith(f"ssh -o BatchMode=yes {way} true")
    assert ssh.fetching(host, "/x") == f"scp -r {way.replace('-p', '-P')}:/x ."


def test_a_changed_key_is_forgotten_under_the_name_that_ssh_tells():
    told = "ssh-keygen -f '/home/ml/.ssh/known_hosts' -R '[10.0.0.7]:2222'"
    said = f"WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\n  remove with:\r\n  {told}\r\nbye"
    _, hint = explain("gpu1", 255, said)
    assert f"if the key is right: {told}, then ssh gpu1" in hint
