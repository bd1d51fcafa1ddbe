"""TLS at Envoy's public listener.

The certificate and its key stay in the operator's files. Envoy finds them through a file of ours: only
then it reads them again, after a rename in the certificate's folder, as by a mounted secret of
Kubernetes. Envoy keeps the old certificate if the new files do not fit.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import orjson

from fairserve.platform.envoy.settings import EnvoySettings
from fairserve.platform.envoy.workers_file import replace_file

_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"
_NAME = "public"


def certificate_of(settings: EnvoySettings) -> tuple[Path, Path] | None:
    """Return the absolute paths of the certificate chain and of its key; None: no TLS."""
    if settings.envoy_tls_cert is None or settings.envoy_tls_key is None:
        return None
    return settings.envoy_tls_cert.absolute(), settings.envoy_tls_key.absolute()


def check_certificate(settings: EnvoySettings) -> None:
    """Raise ValueError, which names the setting, if TLS is set and cannot be used."""
    found = certificate_of(settings)
    if found is None:
        return
    for name, path in zip(("envoy_tls_cert", "envoy_tls_key"), found, strict=True):
        try:
            path.read_bytes()
        except OSError as error:
            raise ValueError(f"{name}: {path} cannot be read: {error.strerror}") from error
    certificate, key = found
    try:
        # The password, which is empty, prevents a question at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise ValueError(
            f"envoy_tls_cert, envoy_tls_key: {certificate} and {key} must be a certificate chain and its"
            f" private key without a password, in PEM ({reason})"
        ) from error


def write_certificate(path: Path, settings: EnvoySettings) -> None:
    """Write the file that names the certificate, if TLS is set. Raises OSError."""
    found = certificate_of(settings)
    if found is None:
        return
    certificate, key = found
    secret = {
        "@type": f"{_TLS}.Secret",
        "name": _NAME,
        "tls_certificate": {
            "certificate_chain": {"filename": str(certificate)},
            "private_key": {"filename": str(key)},
            "watched_directory": {"path": str(certificate.parent)},
        },
    }
    replace_file(path, orjson.dumps({"resources": [secret]}, option=orjson.OPT_INDENT_2))


def transport_socket(certificate_file: Path) -> dict[str, Any]:
    """Return the socket of the listener: TLS 1.2 or newer, and HTTP/2 for clients that can."""
    source = {"path": str(certificate_file)}
    context = {
        "@type": f"{_TLS}.DownstreamTlsContext",
        "common_tls_context": {
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_certificate_sds_secret_configs": [
                {
                    "name": _NAME,
                    "sds_config": {"resource_api_version": "V3", "path_config_source": source},
                }
            ],
        },
    }
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}
