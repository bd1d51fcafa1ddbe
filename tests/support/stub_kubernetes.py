"""A stub of the Kubernetes API in a thread: one InferencePool and pods, with lists and watches."""

import asyncio
import json
import threading

from aiohttp import web
from hang_up import ends_quietly

DEADLINE_S = 60
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/{namespace}/inferencepools"
PODS = "/api/v1/namespaces/{namespace}/pods"


class StubKubernetes:
    """Serves one namespace. Every change has a version; watches send the changes after theirs."""

    def __init__(self, folder, namespace="models"):
        self.namespace = namespace
        self.version = 100
        self.pools, self.pods = {}, {}
        self.log = []
        """Changes as ``(version, kind, event)``."""
        self.oldest = 0
        """Versions up to this one are gone: their watches answer 410."""
        self.requests = []
        """Path and query of each request."""
        self.down = False
        """Flag: each request answers 500, and open watches end."""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(DEADLINE_S)
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(self._kubeconfig()))

    def _kubeconfig(self):
        cluster = {"name": "stub", "cluster": {"server": self.url}}
        user = {"name": "stub", "user": {"token": "stub-token"}}
        context = {"name": "stub", "context": {"cluster": "stub", "user": "stub"}}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [cluster],
            "users": [user],
            "contexts": [context],
            "current-context": "stub",
        }

    async def _serve(self):
        self._loop = asyncio.get_running_loop()
        self._stop, self._changed = asyncio.Event(), asyncio.Condition()
        self._broken = 0
        app = web.Application(middlewares=[ends_quietly])
        app.router.add_get(POOLS, self._list_pools)
        app.router.add_get(PODS, self._list_pods)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def close(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    # --- changes ----------------------------------------------------------------------------------

    def _change(self, act):
        """Apply a change in the thread of the stub, and wake its watches."""

        async def change():
            async with self._changed:
                act()
                self._changed.notify_all()

        asyncio.run_coroutine_threadsafe(change(), self._loop).result(DEADLINE_S)

    def _put(self, store, kind, name, found):
        def act():
            self.version += 1
            event = "MODIFIED" if name in store else "ADDED"
            found["metadata"] |= {"name": name, "resourceVersion": str(self.version)}
            store[name] = found
            self.log.append((self.version, kind, {"type": event, "object": dict(found)}))

        self._change(act)

    def put_pool(self, name="pool", ports=(8000,), **labels):
        spec = {
            "selector": {"matchLabels": labels or {"app": "vllm"}},
            "targetPorts": [{"number": port} for port in ports],
        }
        self._put(self.pools, "pool", name, {"metadata": {}, "spec": spec})

    def put_pod(self, name, address, *, ready=True, deleting=False, **labels):
        metadata = {"labels": labels or {"app": "vllm"}}
        if deleting:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        status = {"podIP": address, "conditions": [condition]}
        self._put(self.pods, "pod", name, {"metadata": metadata, "status": status})

    def delete(self, name):
        store, kind = (self.pods, "pod") if name in self.pods else (self.pools, "pool")

        def act():
            self.version += 1
            found = store.pop(name)
            found["metadata"]["resourceVersion"] = str(self.version)
            self.log.append((self.version, kind, {"type": "DELETED", "object": found}))

        self._change(act)

    def forget(self, *, silently=False):
        """Drop all changes so far: later watches of old versions are answered with 410 Gone."""

        def act():
            self.oldest = self.version
            if silently:
                self._broken += 1

        self._change(act)

    def lose(self, name):
        """Delete a pod without an event, as if it was missed."""
        self._change(lambda: self.pods.pop(name))

    def end_watches(self):
        def act():
            self._broken += 1

        self._change(act)

    def set_down(self, down):
        def act():
            self.down = down
            self._broken += 1

        self._change(act)

    # --- requests ---------------------------------------------------------------------------------

    async def _list_pools(self, request):
        field = request.query.get("fieldSelector", "")
        name = field.removeprefix("metadata.name=")
        return await self._answer(request, "pool", self.pools, lambda found: _name(found) == name)

    async def _list_pods(self, request):
        wanted = dict(each.split("=") for each in request.query["labelSelector"].split(","))

        def matches(found):
            return wanted.items() <= found["metadata"]["labels"].items()

        return await self._answer(request, "pod", self.pods, matches)

    async def _answer(self, request, kind, store, matches):
        self.requests.append((request.path, dict(request.query)))
        if request.headers.get("authorization") != "Bearer stub-token":
            return web.json_response({"code": 401, "message": "no token"}, status=401)
        if request.match_info["namespace"] != self.namespace or self.down:
            return web.json_response({"code": 500, "message": "it is down"}, status=500)
        if request.query.get("watch") in ("true", "True"):
            return await self._watch(request, kind, matches)
        items = [found for found in store.values() if matches(found)]
        metadata = {"resourceVersion": str(self.version)}
        return web.json_response({"metadata": metadata, "items": items})

    async def _watch(self, request, kind, matches):
        seen, broken = int(request.query["resourceVersion"]), self._broken
        response = web.StreamResponse()
        await response.prepare(request)
        if seen < self.oldest:
            gone = {"code": 410, "message": "too old resource version"}
            await self._send(response, {"type": "ERROR", "object": gone})
            return response
        while self._broken == broken:
            for version, changed, event in list(self.log):
                if version > seen and changed == kind and matches(event["object"]):
                    await self._send(response, event)
            seen = max(seen, self.version)
            bookmark = {"metadata": {"resourceVersion": str(seen)}}
            await self._send(response, {"type": "BOOKMARK", "object": bookmark})
            async with self._changed:
                if self.version == seen and self._broken == broken:
                    await self._changed.wait()
        return response

    async def _send(self, response, event):
        await response.write(json.dumps(event).encode() + b"\n")


def _name(found):
    return found["metadata"]["name"]
