"""An OpenID provider as a process: ``oidc-provider-mock`` (Authlib) behind a layer of this file.

The layer checks PKCE, which the mock ignores, signs the ID tokens with keys that it can rotate, and
answers wrongly where a test asks for it. Run as a script it serves; imported, it starts that script.
"""

import base64
import hashlib
import hmac
import json
import re
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import httpx
from processes import eventually, free_port

NO_FAULTS = {
    "claims": {},
    "algorithm": "RS256",
    "discovery": {},
    "token_status": 200,
}


class OidcProvider:
    """A running provider."""

    def __init__(self, port):
        self.issuer = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.issuer, timeout=60, trust_env=False)

    def settings(self, **more):
        """Return the settings of a server whose people sign in here."""
        return {
            "oidc_issuer": self.issuer,
            "oidc_client_id": "console",
            "oidc_client_secret": "a-secret-of-the-client",
            "oidc_roles": ("viewer=watch", "operator=sre", "operator=night", "admin=platform"),
            "public_url": "https://console.example",
            **more,
        }

    def add(self, subject, **claims):
        """Add or change a person."""
        assert self.http.put(f"/users/{subject}", json=claims).status_code == 204

    def consent(self, url, subject):
        """Sign a person in at the provider's page; return the URL of the callback."""
        answer = self.http.post(url, data={"sub": subject})
        assert answer.status_code == 302, answer.text
        return answer.headers["location"]

    def fail(self, **faults):
        """Answer wrongly from now on: ``claims`` replace those of ID tokens, null removes one."""
        assert faults.keys() <= NO_FAULTS.keys()
        self.http.post("/test/faults", json={**NO_FAULTS, **faults}).raise_for_status()

    def rotate(self):
        """Sign with another key from now on, and publish only that one."""
        self.http.post("/test/rotate").raise_for_status()

    def requests(self):
        """Return the forms of the token requests and the number of fetches of the keys so far."""
        return self.http.get("/test/requests").json()

    def is_ready(self):
        try:
            return self.http.get("/.well-known/openid-configuration").status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def oidc_provider():
    """Yield a provider that runs within the block."""
    port = free_port()
    command = [sys.executable, "-W", "ignore", __file__, str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    provider = OidcProvider(port)
    try:
        eventually(lambda: provider.is_ready() or process.poll() is not None)
        assert process.poll() is None
        yield provider
    finally:
        provider.http.close()
        process.terminate()
        process.wait()


class _Layer:
    """WSGI application around the mock."""

    def __init__(self, inner):
        self.inner = inner
        self.faults = NO_FAULTS
        self.challenges = {}
        self.forms = []
        self.key_fetches = 0
        self.rotate()

    def rotate(self):
        from joserfc.jwk import RSAKey

        self.key = RSAKey.generate_key(2048, auto_kid=True)

    def __call__(self, environ, start_response):
        from werkzeug.wrappers import Request, Response

        request = Request(environ)
        body = request.get_data()
        match request.path:
            case "/test/faults":
                self.faults = json.loads(body)
                return Response()(environ, start_response)
            case "/test/rotate":
                self.rotate()
                return Response()(environ, start_response)
            case "/test/requests":
                found = {"forms": self.forms, "key_fetches": self.key_fetches}
                return self._json(found)(environ, start_response)
            case "/jwks":
                self.key_fetches += 1
                keys = {"keys": [{"kty": "unknown"}, self.key.as_dict(private=False)]}
                return self._json(keys)(environ, start_response)
            case "/oauth2/token":
                form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
                authorization = request.headers.get("authorization")
                self.forms.append({**form, "authorization": authorization})
                digest = hashlib.sha256(form["code_verifier"].encode()).digest()
                if self.challenges.get(form["code"]) != _encoded(digest):
                    return self._json({"error": "invalid_grant"}, 400)(environ, start_response)
        answer = self._ask(environ, body)
        if request.path == "/oauth2/authorize" and "location" in answer.headers:
            query = parse_qs(urlsplit(answer.headers["location"]).query)
            if "code" in query:
                assert request.args["code_challenge_method"] == "S256"
                self.challenges[query["code"][0]] = request.args["code_challenge"]
        elif request.path == "/oauth2/authorize":
            # The page's style is on a host that tests do not reach.
            answer.set_data(re.sub(rb"<link[^>]*https:[^>]*>", b"", answer.get_data()))
        elif request.path == "/.well-known/openid-configuration":
            answer = self._json({**json.loads(answer.get_data()), **self.faults["discovery"]})
        elif request.path == "/oauth2/token" and answer.status_code == 200:
            tokens = json.loads(answer.get_data())
            tokens["id_token"] = self._signed(tokens["id_token"])
            answer = self._json(tokens, self.faults["token_status"])
        return answer(environ, start_response)

    def _ask(self, environ, body):
        import io

        from werkzeug.test import run_wsgi_app
        from werkzeug.wrappers import Response

        environ["wsgi.input"] = io.BytesIO(body)
        found, status, headers = run_wsgi_app(self.inner, environ)
        return Response(b"".join(found), status, headers)

    def _signed(self, token):
        from joserfc import jwt

        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        claims = {**claims, **self.faults["claims"]}
        claims = {name: value for name, value in claims.items() if value is not None}
        algorithm = self.faults["algorithm"]
        header = {"alg": algorithm, "kid": self.key.kid}
        if algorithm == "RS256":
            return jwt.encode(header, claims, self.key)
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        known = self.key.as_pem(private=False)  # what an attacker has as a secret
        signature = hmac.digest(known, signed.encode(), "sha256") if algorithm == "HS256" else b""
        return f"{signed}.{_encoded(signature)}"

    @staticmethod
    def _json(found, status=200):
        from werkzeug.wrappers import Response

        return Response(json.dumps(found), status, mimetype="application/json")


def _encoded(part):
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def main():
    import oidc_provider_mock
    from werkzeug.serving import make_server

    layer = _Layer(oidc_provider_mock.app(require_nonce=True))
    make_server("127.0.0.1", int(sys.argv[1]), layer, threaded=True).serve_forever()


if __name__ == "__main__":
    main()
