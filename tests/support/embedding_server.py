"""A real embedding worker: a small BERT with random weights behind OpenAI's and Jina's HTTP interface.

The vector of a text is the mean of its last hidden states, of length 1. A document's relevance is the
cosine of its vector and the query's.
"""

import asyncio
import base64
import functools
import threading

import torch
from aiohttp import web
from hang_up import ends_quietly
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

CONTEXT = 128
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
DEADLINE_S = 90


def write_model(folder):
    """Write a checkpoint: each letter is a token. Return the folder's name."""
    vocabulary = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    # Stored with truncation and padding, as tokenizers of sentence-transformers are.
    tokenizer.enable_truncation(CONTEXT)
    tokenizer.enable_padding()
    special = {f"{name.strip('[]').lower()}_token": name for name in SPECIAL}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=CONTEXT, **special)
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=1,  # kernels of vLLM for CPUs need 32 dimensions a head
        intermediate_size=64,
        max_position_embeddings=CONTEXT,
        initializer_range=0.5,
    )
    BertModel(config).save_pretrained(folder)
    return str(folder)


class Embedder:
    """The model of a checkpoint."""

    def __init__(self, folder):
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self.model = BertModel.from_pretrained(folder).eval()

    def ids(self, text):
        return text if isinstance(text, list) else self.tokenizer(text)["input_ids"]

    def vector(self, text):
        with torch.inference_mode():
            hidden = self.model(torch.tensor([self.ids(text)])).last_hidden_state[0]
        return torch.nn.functional.normalize(hidden.mean(0), dim=0)


class EmbeddingServer:
    """A server in a thread, around an embedder."""

    def __init__(self, embedder, model="bert"):
        self.embedder, self.model = embedder, model
        self.bodies = []
        self.request_ids = []
        """The ``x-request-id`` of each call."""
        self.held = []
        """Bodies of the calls that wait for :meth:`release`."""
        self.disconnects = 0
        self.holds = False
        """Flag: calls wait before they are computed."""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(DEADLINE_S)

    async def _serve(self):
        self._loop = asyncio.get_running_loop()
        self._stop, self._go = asyncio.Event(), asyncio.Event()
        self._transports = set()
        app = web.Application(middlewares=[ends_quietly], client_max_size=1 << 26)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/embeddings", functools.partial(self._call, self._embeddings))
        app.router.add_post("/v1/rerank", functools.partial(self._call, self._rerank))
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._stop.wait()
        for transport in self._transports:
            transport.abort()
        await runner.cleanup()

    def hold(self):
        """Let later calls wait for :meth:`release`."""
        self.holds = True

    def release(self, *, all_later=True):
        """Compute the waiting calls, and with ``all_later`` later ones at once."""
        self.holds = not all_later

        def go():
            self.held.clear()
            self._go.set()
            self._go = asyncio.Event()

        self._loop.call_soon_threadsafe(go)

    def close(self):
        """Stop at once: the connections of waiting calls break."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    async def _health(self, request):
        return web.Response()

    async def _models(self, request):
        return web.json_response({"data": [{"id": self.model, "max_model_len": CONTEXT}]})

    async def _call(self, compute, request):
        body = await request.json()
        self.bodies.append(body)
        self.request_ids.append(request.headers.get("x-request-id"))
        self._transports.add(request.transport)
        try:
            if self.holds:
                self.held.append(body)
                await self._go.wait()
            answer = await asyncio.to_thread(compute, body)
        except asyncio.CancelledError:
            self.disconnects += 1
            raise
        finally:
            self._transports.discard(request.transport)
        return web.json_response(answer[0], status=answer[1])

    def _embeddings(self, body):
        if body.get("dimensions"):
            error = {"message": f"the model has 32 dimensions, not {body['dimensions']}"}
            return {"error": error}, 400
        inputs = body["input"]
        texts = [inputs] if isinstance(inputs, str) or isinstance(inputs[0], int) else inputs
        tokens = sum(len(self.embedder.ids(text)) for text in texts)
        vectors = [self.embedder.vector(text) for text in texts]
        if body.get("encoding_format") == "base64":
            found = [base64.b64encode(each.numpy().tobytes()).decode() for each in vectors]
        else:
            found = [each.tolist() for each in vectors]
        data = [
            {"object": "embedding", "index": index, "embedding": each}
            for index, each in enumerate(found)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": self.model, "usage": usage}, 200

    def _rerank(self, body):
        query, documents = body["query"], body["documents"]
        scores = [
            float(self.embedder.vector(query) @ self.embedder.vector(each)) for each in documents
        ]
        order = sorted(range(len(documents)), key=lambda index: -scores[index])
        results = [
            {
                "index": index,
                "relevance_score": scores[index],
                "document": {"text": documents[index]},
            }
            for index in order[: body.get("top_n")]
        ]
        tokens = sum(len(self.embedder.ids(text)) for text in (query, *documents))
        usage = {"total_tokens": tokens}  # all that Jina reports
        return {"model": self.model, "usage": usage, "results": results}, 200
