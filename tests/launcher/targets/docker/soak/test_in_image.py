"""The step of a build in the image: what pip's output is told as."""

import contextlib
import http.server
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.targets.docker import in_image


@contextlib.contextmanager
def index_of_a_strange_ca(folder: Path) -> Iterator[int]:
    """The port of an index whose certificate nobody knows."""
    files = ("-keyout", "key.pem", "-out", "cert.pem")
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    words = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, *names)
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    with http.server.ThreadingHTTPServer(
        ("localhost", 0), http.server.BaseHTTPRequestHandler
    ) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl makes a certificate")
def test_a_certificate_that_pip_does_not_trust_is_told_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(in_image, "GIVEN", tmp_path)
    monkeypatch.setenv("PIP_RETRIES", "1")
    for name in ("PIP_CERT", "PIP_TRUSTED_HOST", "PIP_NO_INDEX", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    with index_of_a_strange_ca(tmp_path) as port:
        text = f"--index-url https://localhost:{port}/simple\nabsent-package\n"
        (tmp_path / "requirements.txt").write_text(text)
        with pytest.raises(SystemExit) as raised:
            in_image._pip_install("")
    error, fix = str(raised.value).splitlines()
    assert error.startswith("error: pip does not trust the certificate of its index: certificate")
    assert "self" in error
    assert "launcher docs behind-a-firewall" in fix
    assert "--wheelhouse" in fix
