"""Makes a certificate for the loopback with ``openssl``, since Python itself cannot make one."""

import shutil
import subprocess
from pathlib import Path

HOST = "127.0.0.1"

# A key, and a self-signed certificate for two days. Python 3.13 requires this key usage of a signer.
_COMMAND = (
    "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
    "-subj", "/CN=test", "-addext", f"subjectAltName=IP:{HOST},DNS:localhost",
    "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
)  # fmt: skip


class NoOpensslError(Exception):
    """There is no ``openssl`` on ``PATH``, or it cannot make the certificate."""


def make_certificate(folder: Path) -> Path:
    """Return a file with a key and its self-signed certificate for the loopback, which clients must trust."""
    if shutil.which("openssl") is None:
        raise NoOpensslError("there is no openssl on PATH to make a certificate with")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    run = subprocess.run(
        [*_COMMAND, "-keyout", str(key), "-out", str(certificate)], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise NoOpensslError(f"openssl made no certificate: {run.stderr}")
    both = folder / "both.pem"
    both.write_text(key.read_text(encoding="ascii") + certificate.read_text(encoding="ascii"), encoding="ascii")
    return both
