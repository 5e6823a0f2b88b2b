"""Makes a certificate for the loopback, by the program ``openssl``: Python can use certificates, and make none."""

import shutil
import subprocess
from pathlib import Path

HOST = "127.0.0.1"

# A key, and a certificate by itself for two days. The usage of the key is what Python 3.13 asks of a signer.
_COMMAND = (
    "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
    "-subj", "/CN=test", "-addext", f"subjectAltName=IP:{HOST},DNS:localhost",
    "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
)  # fmt: skip


class NoOpensslError(Exception):
    """There is no ``openssl`` on ``PATH``, or none that knows how."""


def make_certificate(folder: Path) -> Path:
    """Make a file with a key and the certificate of the loopback that it signs, which a client has to trust."""
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
