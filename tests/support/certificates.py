"""Certificates for servers of tests."""

import shutil
import subprocess

import pytest


def self_signed(folder, name, alternative):
    """Return the paths of a new key and its certificate; skip the test without ``openssl``.

    ``alternative`` is the subject's alternative name, such as ``IP:127.0.0.1``.
    """
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={alternative}"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return key, certificate
