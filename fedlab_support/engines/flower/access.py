"""Files for encrypted connections, and the secret that starting a run needs."""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from pathlib import Path

LOOPBACK = "127.0.0.1"


def made_certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1 for a month, and its key, in two files."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, LOOPBACK)])
    address = x509.IPAddress(ipaddress.ip_address(LOOPBACK))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public, hidden = folder / "server.pem", folder / "server.key"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    write_private(hidden, private)
    return public, hidden


def write_private(file: Path, content: bytes) -> None:
    """Write a new file that only its owner can read; FileExistsError if it is there."""
    file.touch(mode=0o600, exist_ok=False)
    file.write_bytes(content)


def secret_of(file: Path) -> str:
    """The secret in a file; a new one is drawn and written if there is no file.

    Raises ValueError when others may read the file, or when it has fewer than 32
    characters.
    """
    if not file.exists():
        write_private(file, secrets.token_urlsafe(32).encode())
    if os.name == "posix" and file.stat().st_mode & 0o077:
        raise ValueError(f"others may read the secret in {file}; run chmod 600 {file}")
    found = file.read_text(encoding="utf-8").strip()
    if len(found) < 32:
        raise ValueError(f"expected a secret of 32 characters or more in {file}")
    return found


def login(secret: str, address: str, home: Path | None = None) -> None:
    """Store the secret for ``flwr`` commands to the SuperLink at ``address``.

    home:  as ``$FLWR_HOME``; None: that of the environment.
    """
    from flwr.cli.constant import (
        ACCESS_TOKEN_STORE_KEY,
        AUTHN_TYPE_STORE_KEY,
        REFRESH_TOKEN_STORE_KEY,
    )
    from flwr.common.constant import AuthnType
    from flwr.supercore.credential_store import FileCredentialStore
    from flwr.supercore.utils import get_flwr_home

    store = FileCredentialStore((home or get_flwr_home()) / "credentials.yaml")
    store.set(AUTHN_TYPE_STORE_KEY % address, AuthnType.OIDC.encode())
    for key in (ACCESS_TOKEN_STORE_KEY, REFRESH_TOKEN_STORE_KEY):
        store.set(key % address, secret.encode())
