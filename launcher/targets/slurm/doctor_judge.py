"""Turns what Slurm's commands print into findings. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from launcher.doctor.finding import Finding, failed, ok, warning
from launcher.targets.slurm import client
from launcher.targets.slurm.doctor_fit import SlurmRequest
from launcher.targets.slurm.site import ClusterNode, FileSystem, seconds_of

CLOCK_LIMIT_S = 2.0
"""Checkpoints and the report compare times of several machines."""
SHARED_TYPES = re.compile(
    r"nfs4?|lustre|gpfs|beegfs\w*|(fuse\.)?(ceph|glusterfs|quobyte|mfs|daos|dfuse|juicefs|sshfs)|"
    r"panfs|afs|cifs|smb3|wekafs|pvfs2|orangefs|gfs2|ocfs2|virtiofs|9p|autofs"
)
LOCAL_TYPES = re.compile(r"ext[234]|xfs|btrfs|bcachefs|zfs|f2fs|overlay|tmpfs|ramfs|squashfs|vfat")
# -- the controller -------------------------------------------------------------------------------


def judge_versions(client: str, config: Mapping[str, str], nodes: Sequence[ClusterNode]) -> Finding:
    """Slurm's releases talk to each other over a few years of them, the older as the client."""
    here, there = _release(client), _release(config.get("SLURM_VERSION", ""))
    others = Counter(node.version for node in {node.name: node for node in nodes}.values())
    told = f"client {here}, controller {there}, nodes {', '.join(sorted(filter(None, others)))}"
    if _number(here) > _number(there):
        fix = "log in to a login node of the cluster, or module avail slurm"
        return warning("versions", "Slurm", f"{told}: the client is newer than the controller", fix)
    return ok("versions", "Slurm", told)


def _release(version: str) -> str:
    found = re.search(r"\d+\.\d+(\.\d+)?", version)
    return found[0] if found else "?"


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(word) for word in release.split(".")[:2] if word.isdigit())


# -- account, time to stop ------------------------------------------------------------------------


def judge_account(config: Mapping[str, str], associations: str, asked: SlurmRequest) -> Finding:
    """``associations`` are lines ``ACCOUNT|PARTITION|QOS`` of the user, as sacctmgr prints them."""
    if config.get("AccountingStorageType", "").endswith("/none"):
        if asked.account or asked.qos:
            found = "the cluster keeps no accounts: slurm.account and slurm.qos are not checked"
            return warning("account", "cluster", found, "remove them, or ask an admin")
        return ok("account", "cluster", "the cluster keeps no accounts")
    rows = [line.split("|") for line in associations.splitlines() if line.count("|") == 2]
    accounts = sorted({row[0] for row in rows})
    if not rows:
        found = "you are in no account of this cluster"
        return failed("account", "you", found, "ask an admin: sacctmgr add user YOU account=NAME")
    if asked.account and asked.account not in accounts:
        found = f"slurm.account is {asked.account}; you are in {', '.join(accounts)}"
        return failed("account", asked.account, found, f"--set slurm.account={accounts[0]}")
    mine = [row for row in rows if not asked.account or row[0] == asked.account]
    if asked.partitions and not any(row[1] in ("", *asked.partitions) for row in mine):
        names = ", ".join(sorted({row[1] for row in mine}))
        found = f"may use the partitions {names}, not {', '.join(asked.partitions)}"
        fix = f"--set slurm.partition={mine[0][1]}"
        return failed("account", asked.account or "you", found, fix)
    known = sorted({qos for row in mine for qos in row[2].split(",") if qos})
    if asked.qos and known and asked.qos not in known:
        found = f"slurm.qos is {asked.qos}; you may use {', '.join(known)}"
        return failed("account", asked.account or "you", found, f"--set slurm.qos={known[0]}")
    return ok("account", "you", asked.account or f"your default of {', '.join(accounts)}")


def judge_stop(
    config: Mapping[str, str], partitions: Sequence[Mapping[str, str]], asked: SlurmRequest
) -> Iterator[Finding]:
    """How long the training has for a checkpoint where Slurm itself ends the job."""
    kill_wait_s = seconds_of(config.get("KillWait", "30 sec"))
    given = [seconds_of(fields.get("GraceTime", "0")) for fields in partitions]
    preempts = config.get("PreemptType", "preempt/none") != "preempt/none"
    modes = {fields.get("PreemptMode", "OFF") for fields in partitions} if preempts else set()
    told = f"KillWait is {kill_wait_s:g} s"
    if modes - {"OFF"}:
        told += f", preemption {', '.join(sorted(modes - {'OFF'}))}"
        told += f" with GraceTime {min(given):g} s" if any(given) else ""
    if "preempt_send_user_signal" in config.get("SlurmctldParameters", ""):
        told += ", which is announced"
    else:
        kill_wait_s += min(given, default=0) if modes - {"OFF"} else 0
    if kill_wait_s < asked.grace_s:
        found = f"{told}; stop_grace_s is {asked.grace_s}"
        fix = f"--set stop_grace_s={kill_wait_s:g}, or more frequent checkpoints"
        yield warning("time to stop", "cluster", found, fix)
    else:
        yield ok("time to stop", "cluster", f"{told}; stop_grace_s is {asked.grace_s}")
    if "CANCEL" in modes:
        found = "a preempted job is cancelled, not requeued"
        fix = "a partition or QOS that requeues; else launcher run --resume RUN"
        yield warning("preemption", "partition", found, fix)


# -- the shared folder, a start -------------------------------------------------------------------


def judge_folder(folder: str, system: FileSystem, *, one_machine: bool) -> Finding:
    """The folder of the run folders, as this machine sees it."""
    on = f"on {system.type} ({system.source})"
    if one_machine:
        return ok("run folder", folder, f"{on}; all nodes are this machine")
    if SHARED_TYPES.fullmatch(system.type):
        return ok("run folder", folder, f"{on}, which other machines can see")
    is_local = LOCAL_TYPES.fullmatch(system.type)
    told = "which other machines do not see" if is_local else "of an unknown kind"
    fix = "--runs FOLDER on the cluster's shared file system; --test-job asks a node"
    return warning("run folder", folder, f"{on}, {told}", fix)


def judge_submission(words: str, *, accepted: bool, now: float) -> Finding:
    """What ``sbatch --test-only`` says of the very script."""
    words = "; ".join(line.strip() for line in words.splitlines() if line.strip())
    words = words.removeprefix("sbatch: ").removeprefix("error: ")
    if not accepted:
        return failed("start", "sbatch", words, client.fix_of_refusal(words))
    at = re.search(r"to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", words)
    if at is None:
        return ok("start", "sbatch", words or "accepts the job")
    wait_s = max(0.0, datetime.fromisoformat(at[1]).timestamp() - now)
    return ok("start", "sbatch", f"in about {_told_time(wait_s)}: {words}")


def _told_time(seconds: float) -> str:
    for length, unit in ((86400, "days"), (3600, "hours"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def judge_clock(host: str, at: float, began: float, ended: float) -> Finding:
    """A node's clock between two moments of this machine's, all in seconds since the epoch."""
    off_s = max(began - at, at - ended)
    if off_s <= CLOCK_LIMIT_S:
        told = f"as this machine's, to within the {ended - began:.0f} s of the test job"
        return ok("clock", host, told)
    told = f"at least {off_s:.0f} s {'behind' if at < began else 'ahead of'} this machine's"
    return warning("clock", host, told, "an admin: timedatectl set-ntp true on both machines")
