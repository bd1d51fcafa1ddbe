"""HTTP/2 and TLS at the real Envoy's public side."""

import asyncio
import shutil
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from envoy_plane import WHOLE, answering, envoy_plane
from gateway_server import ADMIN_KEY, DEADLINE_S, ThreadServer
from http2_frames import (
    HEADERS,
    MAX_CONCURRENT_STREAMS,
    RESET,
    SETTINGS,
    STATUS_200,
    frame,
    http2_client,
    request,
    settings_of,
)
from scripted_worker import ScriptedWorker
from until import until

from fairserve.platform.envoy.limits import Limits
from fairserve.platform.envoy.picker.certificate import self_signed
from fairserve.platform.envoy.settings import EnvoySettings

PATH = "/v1/chat/completions"
RESETS = 3000
LEAVING = 3000


# --- HTTP/2 ---------------------------------------------------------------------------------------


async def test_calls_of_one_connection_are_answered_side_by_side():
    async with envoy_plane() as plane:
        worker = await plane.worker(answering(body=WHOLE))
        plane.decisions.hold.clear()
        async with http2_client(plane.process.port) as client:
            client.send(*(request(1 + 2 * number, PATH) for number in range(20)))
            await until(lambda: len([c for c in plane.decisions.calls if c.body]) == 20)
            plane.decisions.hold.set()
            answered = [await client.read_until(HEADERS) for _ in range(20)]
        assert {payload[0] for *_, payload in answered} == {STATUS_200}
        assert len({stream for _, _, stream, _ in answered}) == 20
        assert len(worker.received) == 20


async def test_streams_of_a_connection_are_bounded():
    settings = EnvoySettings(envoy_concurrency=1, envoy_streams_per_connection=3)
    async with envoy_plane(settings=settings) as plane:
        await plane.worker(answering(body=WHOLE))
        plane.decisions.hold.clear()
        async with http2_client(plane.process.port) as client:
            *_, payload = await client.read_until(SETTINGS)
            assert settings_of(payload)[MAX_CONCURRENT_STREAMS] == 3
            client.send(*(request(1 + 2 * number, PATH) for number in range(4)))
            await client.read_to_end()
        assert len(plane.decisions.calls) <= 3
        plane.decisions.hold.set()


async def test_a_client_that_only_resets_streams_loses_its_connection():
    async with envoy_plane() as plane:
        await plane.worker(answering(body=WHOLE))
        plane.decisions.hold.clear()
        async with http2_client(plane.process.port) as client:
            for number in range(RESETS):
                stream = 1 + 2 * number
                client.send(request(stream, PATH), frame(RESET, 0, stream, bytes([0, 0, 0, 8])))
            await client.read_to_end()
        assert len(plane.decisions.calls) < RESETS
        plane.decisions.hold.set()
        await until(lambda: all(call.ended.is_set() for call in plane.decisions.calls))


async def test_clients_that_leave_together_leave_other_calls_alone():
    """Envoy closes all their streams to the decision service at once, on a connection that all share."""
    settings = EnvoySettings(envoy_concurrency=1, envoy_streams_per_connection=10_000)
    async with envoy_plane(settings=settings) as plane:
        await plane.worker(answering(body=WHOLE))
        plane.decisions.hold.clear()

        def waiting():
            return [call for call in plane.decisions.calls if call.body and not call.ended.is_set()]

        async with http2_client(plane.process.port) as other:
            other.send(request(1, PATH))
            await until(waiting)
            async with http2_client(plane.process.port) as client:
                client.send(*(request(1 + 2 * number, PATH) for number in range(LEAVING)))
                await until(lambda: len(waiting()) == LEAVING + 1)
            await until(lambda: len(waiting()) <= 1)
            plane.decisions.hold.set()
            assert await other.accepts()


async def test_reserved_headers_of_http2_are_removed():
    async with envoy_plane() as plane:
        worker = await plane.worker(answering(body=WHOLE))
        forged = [
            ("x-fairserve-call", "stolen"),
            ("x-fairserve-relay", "1"),
            ("x-gateway-destination-endpoint", "127.0.0.1:1"),
            ("x-envoy-attempt-count", "2"),
        ]
        async with http2_client(plane.process.port) as client:
            client.send(request(1, PATH, *forged))
            assert await client.accepts()
        assert not {name for name, _ in forged} & set(plane.decisions.calls[0].headers)
        assert worker.received[0].headers["x-fairserve-call"] == "r1"


@pytest.mark.parametrize(
    "line",
    [
        ("X-Upper", "a"),
        ("connection", "keep-alive"),
        ("transfer-encoding", "chunked"),
        ("content-length", "3"),
        ("x-a", "a\r\nx-fairserve-call: stolen"),
        ("x-a\r\nx-fairserve-call: stolen", "a"),
        (":path", "/v1/models"),
    ],
)
async def test_headers_that_http2_forbids_reach_nobody(line):
    async with envoy_plane() as plane:
        worker = await plane.worker(answering(body=WHOLE))
        async with http2_client(plane.process.port) as client:
            client.send(request(1, PATH, line))
            assert not await client.accepts()
        assert not worker.received
        assert not plane.api.received


# --- TLS ------------------------------------------------------------------------------------------


@dataclass
class Certificate:
    """A self-signed certificate in files."""

    cert: Path
    key: Path

    def renew(self):
        self.replace(*self_signed("127.0.0.1"))

    def replace(self, key, cert):
        """Replace both files by a rename, as certificate managers do."""
        for path, data in ((self.key, key), (self.cert, cert)):
            new = path.with_suffix(".new")
            new.write_bytes(data)
            new.replace(path)

    def context(self):
        """Return the context of a client that trusts this certificate only."""
        return ssl.create_default_context(cadata=self.cert.read_text())

    def settings(self):
        return EnvoySettings(envoy_concurrency=1, envoy_tls_cert=self.cert, envoy_tls_key=self.key)


class MountedSecret(Certificate):
    """A Secret that kubelet mounts: files are links into a folder that one rename replaces."""

    def replace(self, key, cert):
        folder = self.cert.parent
        version, current = Path(tempfile.mkdtemp(prefix="..", dir=folder)), folder / "..data"
        for path, data in ((self.key, key), (self.cert, cert)):
            (version / path.name).write_bytes(data)
        old = current.resolve() if current.exists() else None
        new = folder / "..data_tmp"
        new.symlink_to(version.name)
        new.replace(current)
        if old is not None:
            shutil.rmtree(old)
            return
        for path in (self.key, self.cert):
            path.symlink_to(Path("..data", path.name))


@pytest.fixture
def certificate(tmp_path):
    return made(Certificate, tmp_path)


def made(kind, folder):
    """Return a new certificate in a folder."""
    found = kind(folder / "cert.pem", folder / "key.pem")
    found.renew()
    return found


async def connect(plane, context):
    """Return the version of TLS and the protocol of a new connection."""
    _, writer = await asyncio.open_connection("127.0.0.1", plane.process.port, ssl=context)
    connection = writer.get_extra_info("ssl_object")
    writer.close()
    return connection.version(), connection.selected_alpn_protocol()


async def test_clients_speak_tls_1_2_or_newer_and_choose_their_protocol(certificate):
    async with envoy_plane(settings=certificate.settings()) as plane:
        for known, chosen in ((["h2", "http/1.1"], "h2"), (["http/1.1"], "http/1.1"), ([], None)):
            context = certificate.context()
            context.set_alpn_protocols(known)
            assert await connect(plane, context) == ("TLSv1.3", chosen)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert (await connect(plane, context))[0] == "TLSv1.2"


async def test_a_client_without_tls_gets_nothing(certificate):
    async with envoy_plane(settings=certificate.settings()) as plane:
        reader, writer = await asyncio.open_connection("127.0.0.1", plane.process.port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
        assert b"HTTP/" not in await reader.read()
        writer.close()
        assert not plane.api.received


async def test_a_handshake_has_a_time_limit(certificate):
    limits = Limits(request_head_timeout_s=0.2)
    async with envoy_plane(limits, certificate.settings()) as plane:
        reader, writer = await asyncio.open_connection("127.0.0.1", plane.process.port)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("protocol", ["--http1.1", "--http2"])
async def test_calls_pass_with_tls(certificate, protocol):
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    async with envoy_plane(settings=certificate.settings()) as plane:
        worker = await plane.worker(answering(body=WHOLE))
        child = await asyncio.create_subprocess_exec(
            *(curl, "--silent", "--cacert", str(certificate.cert), protocol, "--data", "{}"),
            *("--write-out", " %{http_version} %{http_code}"),
            f"https://127.0.0.1:{plane.process.port}{PATH}",
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await child.communicate()
        assert out.decode().split()[-2:] == [protocol.removeprefix("--http"), "200"]
        assert len(worker.received) == 1
        assert plane.decisions.calls[0].headers["x-forwarded-proto"] == "https"


@pytest.mark.parametrize("kind", [Certificate, MountedSecret])
async def test_a_renewed_certificate_is_used_and_a_broken_one_is_not(kind, tmp_path, caplog):
    certificate = made(kind, tmp_path)
    async with envoy_plane(settings=certificate.settings()) as plane:
        old = certificate.context()
        await connect(plane, old)
        certificate.renew()

        async def changed():
            try:
                await connect(plane, certificate.context())
            except ssl.SSLError:
                return False
            return True

        async with asyncio.timeout(60):
            while not await changed():
                pass
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(plane, old)
        new = certificate.context()
        certificate.replace(certificate.key.read_bytes(), b"nothing")
        await until(lambda: "certificate" in caplog.text)
        await connect(plane, new)


class TlsServer(ThreadServer):
    """A server whose Envoy serves TLS only."""

    def __init__(self, data_dir, certificate, *flags):
        self._certificate = certificate
        paths = (str(certificate.cert), str(certificate.key))
        super().__init__(
            data_dir,
            *("--data-plane", "envoy", "--envoy-tls-cert", paths[0], "--envoy-tls-key", paths[1]),
            *flags,
        )

    def _connect(self, port):
        super()._connect(port)
        self.http.close()
        self.url = f"https://127.0.0.1:{port}"
        context = self._certificate.context()
        self.http = httpx.Client(base_url=self.url, verify=context, timeout=DEADLINE_S)


def test_a_server_with_tls_serves_calls_and_knows_its_scheme(certificate, tmp_path, capfd):
    worker = ScriptedWorker()
    server = TlsServer(tmp_path / "data", certificate, "--worker-urls", worker.url)
    try:
        message = {"role": "user", "content": "say hello"}
        answer = server.post(PATH, {"model": "scripted", "messages": [message]})
        assert answer.status_code == 200, answer.text
        signed_in = server.http.post("/console/sign-in", data={"key": ADMIN_KEY})
        assert signed_in.status_code == 303, signed_in.text
        assert "secure" in signed_in.headers["set-cookie"].lower()
        slash = server.post(PATH + "/", {})
        assert slash.headers["location"].startswith("https://")
        assert f"ready at {server.url}" in capfd.readouterr().out
    finally:
        server.close()
        worker.close()
