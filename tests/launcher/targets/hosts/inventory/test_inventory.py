"""Inventories: every form to the same hosts, every mistake to its line and its fix."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.contract.errors import InputError
from launcher.targets.hosts.inventory.inventory import (
    Inventory,
    expand,
    filter_hosts,
    parse_host_list,
    parse_inventory,
    read_inventory,
    read_inventory_of,
)
from launcher.targets.hosts.settings import Host

YAML = """\
ssh_config: ./ssh_config
order_by: rack
defaults: {user: ml, port: 2222, labels: {site: west}}
hosts:
  - gpu1
  - {host: "gpu[2-3]", gpus: [0, 2], interface: ib0, labels: {rack: b}}
  - {host: 10.0.0.7, user: root, slots: 4, identity: ~/.ssh/other, labels: {rack: ""}}
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu1, gpu2", ["gpu1", "gpu2"]),
        ("10.0.0.[3-6]", ["10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]),
        ("gpu[08-10]", ["gpu08", "gpu09", "gpu10"]),
        ("gpu[1,3-4],cpu1", ["gpu1", "gpu3", "gpu4", "cpu1"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("gpu[1-2].example.org", ["gpu1.example.org", "gpu2.example.org"]),
        ("fd00::1", ["fd00::1"]),
        ("gpu1,", ["gpu1"]),
    ],
)
def test_a_list_of_names_and_ranges_is_expanded(text, names):
    assert [host.name for host in parse_host_list(text)] == names


def test_a_name_may_bring_its_user():
    assert parse_host_list("ml@gpu[1-2]") == (
        Host(name="gpu1", user="ml"),
        Host(name="gpu2", user="ml"),
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no host is named"),
        ("gpu[1-", "is no host name"),
        ("gpu[4-1]", "'4-1' is no range"),
        ("gpu[a-b]", "'a-b' is no range"),
        ("gpu[1-99999]", "more than 4096 hosts"),
        ("r[1-64]n[0-64]", "more than 4096 hosts"),
        ("gpu1,gpu1", "gpu1 is named twice"),
        ("-oProxyCommand=x", "is no host name"),
        ("ml -x@gpu1", "is no user name"),
        ("gpu1;gpu2", "is no host name"),
        ("$(reboot)", "is no host name"),
    ],
)
def test_a_bad_list_is_refused(text, what):
    with pytest.raises(InputError, match=r"^--hosts: ") as error:
        parse_host_list(text)
    assert what in error.value.what
    assert error.value.hint


@given(
    st.sampled_from(["gpu", "n-", "r1."]),
    st.integers(0, 5000),
    st.integers(0, 300),
    st.integers(1, 5),
)
def test_a_range_has_all_its_numbers_once(prefix, first, more, width):
    names = expand(f"{prefix}[{first:0{width}d}-{first + more}]")
    assert [int(name.removeprefix(prefix)) for name in names] == [*range(first, first + more + 1)]


@given(st.text(max_size=40))
def test_any_text_is_hosts_or_a_refusal_and_never_an_option_of_ssh(text):
    try:
        hosts = parse_host_list(text)
    except InputError:
        return
    assert hosts
    assert not [h for h in hosts if h.name.startswith("-") or set(h.name) & set(" \n;$'\"")]


def test_a_hostfile_of_other_launchers_is_read():
    text = "# two machines\ngpu1 slots=8\n\n  ml@gpu2 slots=4 max_slots=4  # the old one\ngpu3\n"
    assert parse_inventory(text, "hostfile").hosts == (
        Host(name="gpu1", slots=8),
        Host(name="gpu2", user="ml", slots=4),
        Host(name="gpu3"),
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("gpu1 slots=0", "f:1: 'slots=0' is not understood"),
        ("gpu1\ngpu2 gpus=8", "f:2: 'gpus=8' is not understood"),
        ("gpu1\n\ngpu1", "f:3: gpu1 is named twice"),
        ("# nothing\n", "f:1: no host is named"),
    ],
)
def test_a_bad_hostfile_is_refused_by_line(text, what):
    with pytest.raises(InputError) as error:
        parse_inventory(text, "f")
    assert error.value.what == what


def test_an_inventory_file_gives_hosts_with_defaults_in_the_order_of_a_label():
    inventory = parse_inventory(YAML, "hosts.yaml")
    assert inventory.ssh_config == "./ssh_config"
    gpu1, other, gpu2, gpu3 = inventory.hosts
    assert gpu1 == Host(name="gpu1", user="ml", port=2222, labels=(("site", "west"),))
    assert (other.name, other.user, other.slots) == ("10.0.0.7", "root", 4)
    assert other.identity == "~/.ssh/other"
    assert (gpu2.name, gpu3.name) == ("gpu2", "gpu3")
    assert gpu2.gpus == ("0", "2")
    assert gpu2.interface == "ib0"
    assert dict(gpu2.labels) == {"site": "west", "rack": "b"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("hosts: []", "f:1: hosts: found []; "),
        ("defaults: {port: 22}", "f:1: hosts: missing"),
        (
            "hosts:\n  - {host: gpu2, prot: 22}",
            "f:2: hosts.0.prot: no such key; fix: did you mean port?",
        ),
        ("hosts:\n  - {hots: gpu1}", "f:2: hosts.0.hots: no such key; fix: did you mean host?"),
        ("hosts: [gpu1]\nhsots: 1", "f:2: hsots: no such key; fix: did you mean hosts?"),
        (
            "hosts: [gpu1]\ndefaults: {rack: a}",
            "f:2: defaults.rack: no such key; fix: one of: user,",
        ),
        ("hosts:\n  - {port: 22}", "f:2: hosts.0.host: missing"),
        ("hosts:\n  - {host: gpu1, port: 0}", "f:2: hosts.0.port: found 0; it should be greater"),
        (
            "hosts:\n  - {host: gpu1, lease_dir: ~/x}",
            "f:2: hosts.0.lease_dir: found '~/x'",
        ),
        ("hosts:\n  - {host: gpu1, gpus: []}", "f:2: hosts.0.gpus: found []"),
        ("hosts:\n  - {host: gpu1, interface: 'a b'}", "hosts.0.interface: found 'a b'"),
        ("hosts:\n  - {host: gpu1, labels: x}", "f:2: hosts.0.labels: found 'x'"),
        ("hosts: [gpu1, gpu1]", "f:1: gpu1 is named twice"),
        ("hosts: [gpu1]\nracks: 1", "; fix: one of: hosts, defaults, ssh_config, order_by"),
        ("hosts: [{host: a, rack: 1}]", "; fix: one of: user, port, identity, slots, gpus, "),
        ("hosts: [{host: gpu1, slots: 4097}]", "found 4097; it should be less than or equal to"),
        ("hosts: [gpu1", "f:1"),
    ],
)
def test_a_bad_inventory_file_is_refused_by_line_and_key(text, what):
    with pytest.raises(InputError) as error:
        parse_inventory(text, "f")
    assert what in f"{error.value.what}; fix: {error.value.hint}".replace("\n  fix:", "; fix:")


def test_a_list_whose_only_host_is_wrong_is_not_called_empty():
    with pytest.raises(InputError) as error:
        parse_inventory("hosts: [{host: gpu1, prot: 22}]", "f")
    assert str(error.value) == "f:1: hosts.0.prot: no such key\n  fix: did you mean port?"


def test_the_least_inventory_is_one_host():
    for text in ("hosts: [gpu1]", "hosts: [{host: gpu1, slots: 4096, port: 65535}]"):
        assert [host.name for host in parse_inventory(text, "f").hosts] == ["gpu1"]


HOSTS = (Host(name="gpu1", gpus=("0", "1", "2")), Host(name="gpu2", slots=2), Host(name="fd00::1"))


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        ("", "", ["gpu1", "gpu2", "fd00::1"]),
        ("gpu2", "", ["gpu2"]),
        ("gpu[1-2]", "gpu2", ["gpu1"]),
        ("", "gpu1, fd00::1", ["gpu2"]),
    ],
)
def test_filters_leave_hosts(include, exclude, left):
    assert [host.name for host in filter_hosts(HOSTS, include, exclude)] == left


@pytest.mark.parametrize(
    ("include", "exclude", "what"),
    [
        ("gpu9", "", "--include: gpu9 is not in the inventory"),
        ("gpu1:0", "", "--include: gpu1:0 is not in the inventory"),
        ("", "gpu1,gpu2,fd00::1", "no host is left"),
    ],
)
def test_a_filter_that_fits_nothing_is_refused(include, exclude, what):
    with pytest.raises(InputError) as error:
        filter_hosts(HOSTS, include, exclude)
    assert what in error.value.what


def test_a_job_names_its_hosts_or_is_refused(make_job):
    told = read_inventory_of(make_job(hosts={"inventory": "gpu[1-2]"}), exclude="gpu1")
    assert told.hosts == (Host(name="gpu2"),)
    with pytest.raises(InputError, match="no hosts are named"):
        read_inventory_of(make_job())


def test_what_is_given_is_a_file_where_one_is_there(tmp_path):
    file = tmp_path / "nodes"
    file.write_text("gpu1 slots=2\n")
    assert read_inventory(str(file)).hosts == (Host(name="gpu1", slots=2),)
    assert read_inventory("gpu1").hosts == (Host(name="gpu1"),)
    for config in ("ssh.cfg", "/etc/ssh.cfg"):
        file.write_text(f"hosts: [gpu1, gpu2]\nssh_config: {config}\n")
        told = read_inventory(str(file), exclude="gpu1", accept_new_host_keys=True)
        own = str(tmp_path / config)
        assert told == Inventory(hosts=(Host(name="gpu2"),), ssh_config=own, accept_new=True)
    with pytest.raises(InputError, match=r"hosts\.yaml: no such file\n  fix: check the path"):
        read_inventory(str(tmp_path / "hosts.yaml"))
    (tmp_path / "host.yaml").touch()
    with pytest.raises(InputError, match=r"fix: did you mean .*/host\.yaml"):
        read_inventory(str(tmp_path / "hosts.yaml"))
