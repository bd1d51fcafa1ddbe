"""A picker in a thread of the test, and a gateway whose messages are scripted."""

import json
import queue

import grpc
from gateway_server import ThreadServer
from google.protobuf.struct_pb2 import Struct
from grpc_health.v1 import health_pb2
from server_client import PROFILE

from fairserve.platform.picker.protocol import messages_pb2 as pb
from fairserve.platform.picker.protocol.services import EXTERNAL_PROCESSOR, PROCESS
from fairserve.platform.server.picker import Picker

DEADLINE_S = 30
NONE, STREAMED, BUFFERED, DUPLEX = 0, 1, 2, 4
CHAT = "/v1/chat/completions"


class PickerServer(ThreadServer):
    """``fairserve picker`` in front of workers that it does not start."""

    def __init__(self, data_dir, *workers, flags=()):
        urls = ",".join(worker.url for worker in workers)
        own = ("--worker-urls", urls) if workers else ()
        super().__init__(data_dir, "--picker-port", "0", "--picker-tls", "off", *own, *flags)

    def addition(self, settings):
        self.picker = Picker(settings)
        return self.picker

    def register(self, name, **limits):
        """Register an app; return its id and its key."""
        body = {"name": name, "profile": PROFILE, **limits}
        answer = self.request("POST", "/v1/apps", self.tenant_key, json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["id"], answer.json()["api_key"]

    def with_default_app(self):
        """Start again with a new app that owns the calls without a key; return its id."""
        app_id, _ = self.register("default")
        self.stop()
        self.flags += ("--picker-app", app_id)
        self.start()
        return app_id

    def gateway(self):
        return Gateway(self.picker.port)


def endpoint_of(worker):
    return worker.url.removeprefix("http://")


def chat(*said, stream=True, **more):
    message = {"role": "user", "content": " ".join(said)}
    return {"model": "scripted", "messages": [message], "stream": stream, **more}


class Gateway:
    """Opens exchanges with a picker."""

    def __init__(self, port, credentials=None):
        address = f"127.0.0.1:{port}"
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self.channel = (
            grpc.insecure_channel(address, options=options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options=options)
        )

    def close(self):
        self.channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def health(self, service):
        check = self.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        answer = check(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE_S)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

    def exchange(self, *, request=DUPLEX, response=DUPLEX):
        return GatewayExchange(self.channel, request, response)


class GatewayExchange:
    """One stream. ``sent`` messages are answered in the order in which the picker likes."""

    def __init__(self, channel, request_mode, response_mode):
        self.request_mode, self.response_mode = request_mode, response_mode
        self._out = queue.SimpleQueue()
        call = channel.stream_stream(
            f"/{EXTERNAL_PROCESSOR}/{PROCESS}",
            pb.ProcessingRequest.SerializeToString,
            pb.ProcessingResponse.FromString,
        )
        self.stream = call(iter(self._out.get, None), timeout=DEADLINE_S)

    def send(self, **fields):
        self._out.put(pb.ProcessingRequest(**fields))

    def read(self):
        """Return the next message of the picker; None at the end of the stream."""
        return next(self.stream, None)

    def end(self):
        """Half-close the stream, as a gateway does whose client has left."""
        self._out.put(None)

    def cancel(self):
        self.stream.cancel()
        self._out.put(None)

    # --- the request ------------------------------------------------------------------------------

    def head(self, *, path=CHAT, method="POST", hint=None, end=False, config=True, **headers):
        """Send the request's headers; ``hint`` is the subset of endpoints."""
        plain = {":method": method, ":path": path, **headers}
        metadata = {}
        if hint is not None:
            entry = Struct()
            entry.update({"x-gateway-destination-endpoint-subset": hint})
            metadata["envoy.lb.subset_hint"] = entry
        more = {}
        if config:
            more["protocol_config"] = pb.ProtocolConfiguration(
                request_body_mode=self.request_mode, response_body_mode=self.response_mode
            )
        self.send(
            request_headers=pb.HttpHeaders(headers=_headers(plain), end_of_stream=end),
            metadata_context=pb.Metadata(filter_metadata=metadata),
            **more,
        )

    def body(self, body, *, parts=1, end=True):
        """Send the request's body in some parts."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        size = -(-len(raw) // parts) or 1
        pieces = [raw[start : start + size] for start in range(0, len(raw), size)] or [b""]
        for number, piece in enumerate(pieces, 1):
            last = end and number == len(pieces)
            self.send(request_body=pb.HttpBody(body=piece, end_of_stream=last))

    def picked(self):
        """Return what the picker decided, once it has sent the whole request back."""
        return Picked(self)

    def ask(self, body, **head):
        """Send a whole request, and return what the picker decided."""
        self.head(**head)
        self.body(body)
        return self.picked()

    # --- the answer -------------------------------------------------------------------------------

    def answer_head(self, status=200, *, served=None, end=False, **headers):
        """Send the headers of the worker's answer."""
        plain = {":status": str(status), "content-type": "text/event-stream", **headers}
        metadata = {}
        if served is not None:
            entry = Struct()
            entry.update({"x-gateway-destination-endpoint-served": served})
            metadata["envoy.lb"] = entry
        plain = {name.replace("_", "-"): value for name, value in plain.items()}
        self.send(
            response_headers=pb.HttpHeaders(headers=_headers(plain), end_of_stream=end),
            metadata_context=pb.Metadata(filter_metadata=metadata),
        )

    def answer_body(self, raw, *, end=False):
        self.send(response_body=pb.HttpBody(body=raw, end_of_stream=end))

    def answer(self, raw, status=200, *, parts=1, **head):
        """Send a whole answer, and return what the client gets: headers and body."""
        self.answer_head(status, **head)
        size = -(-len(raw) // parts) or 1
        pieces = [raw[start : start + size] for start in range(0, len(raw), size)] or [b""]
        for number, piece in enumerate(pieces, 1):
            self.answer_body(piece, end=number == len(pieces))
        return self.answered()

    def answered(self):
        """Return headers and body of the client's answer, in full-duplex mode."""
        headers, body = {}, b""
        while (message := self.read()) is not None:
            kind = message.WhichOneof("response")
            if kind == "response_headers":
                headers |= _set(message.response_headers.response.header_mutation)
                continue
            assert kind == "response_body", message
            part = message.response_body.response.body_mutation.streamed_response
            body += part.body
            if part.end_of_stream:
                return headers, body
        raise AssertionError(f"the stream ended: {headers}, {body}")


class Picked:
    """The picker's answer to a request: an endpoint, or an error."""

    def __init__(self, exchange):
        self.status = None
        self.headers, self.removed = {}, []
        self.raw, self.parts = b"", []
        self.metadata = {}
        self.trailers = False
        buffered = exchange.request_mode == BUFFERED
        while True:
            message = exchange.read()
            assert message is not None, exchange.stream.details()
            kind = message.WhichOneof("response")
            if kind == "immediate_response":
                answer = message.immediate_response
                self.status = answer.status.code
                self.headers = _set(answer.headers)
                self.error = json.loads(answer.body)["error"]
                return
            self._note(message)
            if kind == "request_headers":
                self._take(message.request_headers.response)
                continue
            if kind == "request_trailers":
                self.trailers = True
                return
            assert kind == "request_body", message
            common = message.request_body.response
            if buffered:
                self._take(common)
                self.raw = common.body_mutation.body
                return
            part = common.body_mutation.streamed_response
            self.raw += part.body
            self.parts.append(len(part.body))
            if part.end_of_stream:
                return

    def _note(self, message):
        for namespace, value in message.dynamic_metadata.fields.items():
            for name, entry in value.struct_value.fields.items():
                self.metadata[namespace, name] = entry.string_value

    def _take(self, common):
        self.headers |= _set(common.header_mutation)
        self.removed += common.header_mutation.remove_headers

    @property
    def endpoint(self):
        assert self.status is None, (self.status, self.error)
        return self.headers["x-gateway-destination-endpoint"]

    @property
    def body(self):
        return json.loads(self.raw)


def _headers(plain):
    return pb.HeaderMap(
        headers=[
            pb.HeaderValue(key=name, raw_value=value.encode()) for name, value in plain.items()
        ]
    )


def _set(mutation):
    return {
        each.header.key: each.header.raw_value.decode("latin-1") for each in mutation.set_headers
    }


def sse(*texts, tokens=None, finish=True, done=True, prompt_tokens=12):
    """Return the events of a worker that answers with these texts, one token each."""
    chunks = [_chunk({"role": "assistant", "content": ""}, 0, prompt_tokens)]
    for count, text in enumerate(texts, 1):
        chunks.append(_chunk({"content": text}, count, prompt_tokens))
    count = len(texts) if tokens is None else tokens
    if finish:
        chunks.append(_chunk({}, count, prompt_tokens, finish_reason="stop"))
        chunks.append(_chunk(None, count, prompt_tokens))
    written = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks)
    return written + b"data: [DONE]\n\n" * done


def _chunk(delta, tokens, prompt_tokens, finish_reason=None):
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {
        "id": "chatcmpl-worker",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "scripted",
        "choices": [] if delta is None else [choice],
        "usage": usage(tokens, prompt_tokens),
    }


def usage(tokens, prompt_tokens=12):
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def whole(text, tokens=3):
    """Return the answer of a worker that does not stream."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    answer = {"id": "chatcmpl-worker", "object": "chat.completion", "created": 1}
    return json.dumps(
        {**answer, "model": "scripted", "choices": [choice], "usage": usage(tokens)}
    ).encode()


def events(body):
    """Return the data of the client's events; the end as it is."""
    found = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    return [each if each == "[DONE]" else json.loads(each) for each in found]


def text_of(body):
    return "".join(
        choice["delta"].get("content") or ""
        for event in events(body)
        if event != "[DONE]"
        for choice in event["choices"]
    )
