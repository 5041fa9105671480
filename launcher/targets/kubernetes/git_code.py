"""Code that each pod fetches from a git repository, by the git of an image and the key of a Secret.

The Secret is one of Kubernetes' own types: ``ssh-auth``, with ``known_hosts`` beside the key, or
``basic-auth``.
"""

from __future__ import annotations

from typing import Any

from launcher.contract import protocol
from launcher.job.git_source import GitSource

KEY = "/launcher/git"
FETCH = f"""\
command -v git >/dev/null || {{
  echo "error: the image has no git" >&2
  echo "  fix: code.image: an image that has, such as alpine/git" >&2
  exit 2
}}
set -e
export HOME=/tmp GIT_TERMINAL_PROMPT=0
export GIT_SSH_COMMAND="ssh -i {KEY}/ssh-privatekey -o UserKnownHostsFile={KEY}/known_hosts"
# The kubelet has made the folder, as root.
git config --global safe.directory '*'
git config --global credential.helper '!f() {{ for key in username password; do
  printf "%s=%s\\n" $key "`cat {KEY}/$key`"; done; }}; f'
cd "$2"
git init -q
git fetch -q --depth 1 "$0" "$1"
git checkout -qf FETCH_HEAD
[ ! -f .gitmodules ] || git submodule update -q --init --recursive --depth 1
mkdir -p "./$3"
"""
"""A second time it does the same. No ``$(``, which Kubernetes replaces."""


def render_fetching(source: GitSource, inner: str) -> dict[str, Any]:
    """What is its own in the init container."""
    mounts = [
        {"name": "git", "mountPath": KEY, "readOnly": True},
        # ssh refuses to work for a user without a name.
        {"name": "plan", "mountPath": "/etc/passwd", "subPath": "passwd", "readOnly": True},
    ]
    return {
        **({"image": source.image} if source.image else {}),
        "command": ["sh", "-c", FETCH, source.git, source.ref, protocol.CONTAINER_CODE, inner],
        "volumeMounts": mounts if source.secret else [],
    }
