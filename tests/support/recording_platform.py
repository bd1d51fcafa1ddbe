"""A platform for tests of clients: it answers like the real one, and records its requests."""

import json

import httpx
import openai

KEY = "sk-secret-of-the-app"
MESSAGES = [{"role": "user", "content": "hello"}]
STREAM = (
    b'data: {"id":"chatcmpl-%s","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)


class RecordingPlatform:
    """Answers like the platform; ``calls`` has each completion's headers and body."""

    def __init__(self):
        self.calls = []
        self.others = []
        self.fail = {}

    def __call__(self, request):
        path = request.url.path
        if path in self.fail:
            status, code = self.fail[path]
            reply = {"x-call-id": "failed", "x-interaction-id": "run-1"}
            error = {"message": "no", "code": code}
            return httpx.Response(status, json={"error": error}, headers=reply)
        body = json.loads(request.content) if request.content else None
        if path == "/v1/interactions":
            self.others.append((request.method, path, body))
            return httpx.Response(201, json={"id": "run-1", "state": "open"})
        if not path.endswith("/completions"):
            self.others.append((request.method, path, body))
            return httpx.Response(200, json={"id": "other", "object": "list", "data": []})
        headers = {
            name: value
            for name, value in request.headers.items()
            if name in {"x-interaction-id", "x-agent", "x-parent-ids", "x-call-id", "x-own"}
            or name == "x-interaction-final"
        }
        self.calls.append((headers, body))
        record_id = f"c{len(self.calls)}"
        call_id = headers.get("x-call-id", record_id)
        reply = {"x-call-id": call_id, "x-interaction-id": headers.get("x-interaction-id", "alone")}
        if body.get("stream"):
            reply["content-type"] = "text/event-stream"
            return httpx.Response(200, content=STREAM % record_id.encode(), headers=reply)
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "x"},
        }
        answer = {"id": f"chatcmpl-{record_id}", "object": "chat.completion", "created": 1}
        return httpx.Response(200, json=answer | {"model": "m", "choices": [choice]}, headers=reply)

    def client(self, **more):
        http = httpx.Client(transport=httpx.MockTransport(self), **more)
        return openai.OpenAI(
            base_url="http://platform/v1",
            api_key=KEY,
            max_retries=0,
            http_client=http,
            default_headers={"X-Own": "kept"},
        )

    def async_client(self, **more):
        http = httpx.AsyncClient(transport=httpx.MockTransport(self), **more)
        return openai.AsyncOpenAI(
            base_url="http://platform/v1", api_key=KEY, max_retries=0, http_client=http
        )


def call(client, **more):
    return client.chat.completions.create(model="m", messages=MESSAGES, **more)
