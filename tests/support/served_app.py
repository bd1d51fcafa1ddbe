"""The application of a test client, served on a port for clients that speak HTTP."""

import socket
from contextlib import contextmanager

import uvicorn
from processes import eventually


@contextmanager
def served(client, port=0):
    """Yield the URL of an entered ``TestClient``'s application, served in that client's loop."""
    config = uvicorn.Config(
        client.app,
        lifespan="off",
        log_level="warning",
        log_config=None,
        server_header=False,
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", port)) as listener:
        serving = client.portal.start_task_soon(server.serve, [listener])
        eventually(lambda: server.started or serving.done())
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            serving.result(60)
