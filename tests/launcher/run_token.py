"""Workers that look for their run's token, and what has to be true of it on every target."""

import re
import stat
from pathlib import Path

JOB = "name: tiny\nnnodes: 2\nnproc_per_node: 1\nstop_grace_s: 5\n"
LOOKING = """
import hashlib, hmac, json, os, socket
from pathlib import Path
places = Path(os.environ["RUN_DIR"], "token"), Path("/launcher/token/token")
file = next(path for path in places if path.exists())
token = file.read_text().strip()

def knock(token):
    host, _, port = os.environ["LAUNCHER_RDZV_ENDPOINT"].rpartition(":")
    run = os.environ["TORCHELASTIC_RUN_ID"]
    with socket.create_connection((host, int(port)), 10) as way:
        lines = way.makefile("rb")
        asked = f"{json.loads(lines.readline())['nonce']} {run} "
        proof = hmac.new(token.encode(), asked.encode(), "sha256").hexdigest()
        hello = {"name": "", "run": run, "nonce": "n", "proof": proof}
        way.sendall(json.dumps(hello).encode() + bytes([10]))
        return bool(lines.readline())

def holds(path):
    try:
        return token.encode() in path.read_bytes()
    except OSError:
        return False

shown = [str(p) for name in ("cmdline", "environ") for p in Path("/proc").glob(f"*/{name}")
         if holds(p)]
print(f"token {hashlib.sha256(token.encode()).hexdigest()} of {len(token)}, "
      f"{file.stat().st_mode & 0o777:o}, known {knock(token)}, none {knock('')}, in {shown}")
"""
"""Each worker says what it found; nobody else may say the token itself."""
FOUND = re.compile(
    r"token (\w{64}) of 64, (?:600|444), known True, none False, in \[\]$", re.MULTILINE
)


def check_found(out: str) -> None:
    """Both nodes have the same token, which alone opens the door, and which no process shows."""
    found = FOUND.findall(out)
    assert len(found) == 2, out
    assert len({*found}) == 1, out


def check_folder(run: Path, *said: str) -> None:
    """The launcher's folder of a run has the token in one file that nobody else may read."""
    file = run / "token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = file.read_text()
    files = [path for path in run.rglob("*") if path.is_file()]
    assert {"plan.json", "artifact.sh"} <= {path.name for path in files}
    assert [path for path in files if token in path.read_text(errors="replace")] == [file]
    assert not any(token in text for text in said)
