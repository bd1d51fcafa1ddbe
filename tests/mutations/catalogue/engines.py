"""Bugs of the workers: the embedded engine, clients, KV events, and the plug-in for vLLM."""

from __future__ import annotations

from catalogue.mutation import Mutation

_CIRCUIT = ("tests/unit/engine/wire/*circuit*.py", "tests/property/*circuit*.py")
_PAGES = (
    "tests/unit/engine/*paged_cache*.py",
    "tests/unit/engine/*prefix_trie*.py",
    "tests/unit/engine/*test_engine.py",
    "tests/unit/engine/*preemption*.py",
)
_CLIENT = ("tests/contract/*worker_clients*.py", "tests/unit/engine/wire/*queued_client*.py")

_ENGINE = (
    Mutation(
        "circuit-opens-one-failure-late",
        "engine",
        "engine/wire/circuit.py",
        "if not unreachable and self._counted_failures() < self.options.calls:",
        "if not unreachable and self._counted_failures() <= self.options.calls:",
        _CIRCUIT,
    ),
    Mutation(
        "calls-of-one-tenant-open-the-circuit",
        "engine",
        "engine/wire/circuit.py",
        "min(failed, most) if tenant else failed for",
        "failed for",
        _CIRCUIT,
    ),
    Mutation(
        "circuit-does-not-lengthen-its-pauses",
        "engine",
        "engine/wire/circuit.py",
        "pause_s = self._backoff.pause_s(self._pauses)",
        "pause_s = self._backoff.pause_s(1)",
        _CIRCUIT,
    ),
    Mutation(
        "call-of-an-earlier-worker-process-opens-the-circuit",
        "engine",
        "engine/wire/circuit.py",
        'if generation != self.generation or self.state != "closed":',
        'if self.state != "closed":',
        _CIRCUIT,
    ),
    Mutation(
        "gap-in-the-event-sequence-is-ignored",
        "engine",
        "engine/kv_events/sequence.py",
        """            self._waiting.append((sequence, payload))
            self._ask()
        return self._done()""",
        """            self._take(sequence, payload)
        return self._done()""",
        ("tests/unit/engine/kv_events/*sequence*.py", "tests/unit/engine/kv_events/*follow*.py"),
    ),
    Mutation(
        "removed-block-keeps-the-parts-behind-it",
        "engine",
        "engine/kv_events/view.py",
        """        for child in self._below.pop(name, ()):
            gone += self._remove(child)
""",
        "",
        ("tests/property/*kv_view*.py", "tests/unit/engine/kv_events/*.py"),
    ),
    Mutation(
        "blocks-of-another-lora-are-believed",
        "engine",
        "engine/kv_events/view.py",
        "if event.lora_id is not None or event.lora_name is not None:",
        "if event.lora_id is not None and event.lora_name is not None:",
        ("tests/property/*kv_view*.py", "tests/unit/engine/kv_events/*.py"),
    ),
    Mutation(
        "prompts-of-different-salts-share-a-cache",
        "engine",
        "engine/torch/prefix_trie.py",
        "node = self._root(salt)",
        'node = self._root("")',
        _PAGES,
    ),
    Mutation(
        "page-that-two-sequences-filled-leaks",
        "engine",
        "engine/torch/paged_cache.py",
        "                self.pool.free(own)\n",
        "",
        _PAGES,
    ),
    Mutation(
        "admission-counts-its-own-prefix-as-free",
        "engine",
        "engine/torch/paged_cache.py",
        "available = self.spare_pages - self.trie.unlocked_on_path(node)",
        "available = self.spare_pages",
        _PAGES,
    ),
    Mutation(
        "prefill-exceeds-the-token-budget",
        "engine",
        "engine/torch/batcher.py",
        "tokens = min(sequence.uncomputed_tokens, budget)",
        "tokens = sequence.uncomputed_tokens if budget > 0 else 0",
        _PAGES,
    ),
    Mutation(
        "fair-victim-is-who-has-had-least",
        "engine",
        "engine/torch/batcher.py",
        "_, last = max((surplus(each.sequence_id), at) for at, each in enumerate(running))",
        "_, last = min((surplus(each.sequence_id), at) for at, each in enumerate(running))",
        ("tests/unit/engine/*preemption*.py",),
    ),
    Mutation(
        "output-ends-at-the-last-stop-string",
        "engine",
        "engine/torch/stop_strings.py",
        "at, self.found = min(found)",
        "at, self.found = max(found)",
        ("tests/unit/engine/*output_text*.py",),
    ),
    Mutation(
        "temperature-works-backwards",
        "engine",
        "engine/torch/sampler.py",
        "logits.float() / columns[1].float()",
        "logits.float() * columns[1].float()",
        ("tests/unit/engine/*sampler*.py", "tests/unit/engine/*engine_sampling*.py"),
    ),
    Mutation(
        "queued-client-charges-reported-tokens-again",
        "engine",
        "engine/wire/queued_client.py",
        "if total is None else total - self._charged_tokens",
        "if total is None else total",
        _CLIENT,
    ),
    Mutation(
        "shorter-pause-replaces-a-longer-one",
        "engine",
        "engine/wire/local_queue.py",
        "self.resume_s = max(self.resume_s, until_s)",
        "self.resume_s = until_s",
        ("tests/unit/engine/wire/*local_queue*.py", *_CLIENT),
    ),
    Mutation(
        "retry-after-of-a-worker-is-ignored",
        "engine",
        "engine/wire/client.py",
        "pause_s = _pause_of(headers)",
        "pause_s = PAUSE_S",
        _CLIENT,
    ),
)

_QUEUE = (
    "tests/vllm/*queue_charges*.py",
    "tests/vllm/*test_queue*.py",
    "tests/vllm/*reference*.py",
)

_VLLM = (
    Mutation(
        "vllm-request-is-charged-its-cached-tokens",
        "vllm",
        "engine/vllm/waiting_queue.py",
        "self.local.accept(request.num_computed_tokens)",
        "self.local.accept(0)",
        _QUEUE,
    ),
    Mutation(
        "vllm-client-is-read-from-the-wrong-key",
        "vllm",
        "engine/vllm/callers.py",
        'self._client(arguments.get("client_id"))',
        'self._client(arguments.get("client"))',
        ("tests/unit/engine/*vllm_settings*.py",),
    ),
    Mutation(
        "vllm-charges-of-the-plugin-miss-the-client",
        "vllm",
        "engine/vllm/waiting_queue.py",
        """                    caller.client_id,
""",
        """                    request_id,
""",
        _QUEUE,
    ),
    Mutation(
        "vllm-request-on-offer-is-not-pinned",
        "vllm",
        "engine/vllm/waiting_queue.py",
        """        if self._offered is not None:
            return self._offered
""",
        "",
        _QUEUE,
    ),
    Mutation(
        "vllm-preempted-request-is-charged-again",
        "vllm",
        "engine/vllm/waiting_queue.py",
        """            self.local.requeue(request_id)
        elif runs is None:""",
        """            self.local.finish(request_id)
        if runs is not False:""",
        _QUEUE,
    ),
    Mutation(
        "vllm-scheduled-tokens-count-as-cached",
        "vllm",
        "engine/vllm/scheduler.py",
        """        self.waiting.settle()
        super()._update_after_schedule(*args, **kwargs)  # type: ignore[misc]
""",
        """        super()._update_after_schedule(*args, **kwargs)  # type: ignore[misc]
        self.waiting.settle()
""",
        _QUEUE,
    ),
    Mutation(
        "vllm-victim-is-who-has-had-least",
        "vllm",
        "engine/vllm/scheduler.py",
        "vllm.running.sort(key=self.waiting.surplus)",
        "vllm.running.sort(key=self.waiting.surplus, reverse=True)",
        _QUEUE,
    ),
    Mutation(
        "vllm-admission-takes-the-watermark",
        "vllm",
        "engine/vllm/room.py",
        """        if self._scheduler.running:
            free -= self._manager.watermark_blocks
""",
        "",
        _QUEUE,
    ),
    Mutation(
        "vllm-stored-block-does-not-end-a-wait",
        "vllm",
        "engine/vllm/waiting_queue.py",
        "if view.grew or room.free_blocks() >= self._least_blocks:",
        "if room.free_blocks() >= self._least_blocks:",
        _QUEUE,
    ),
)

ENGINES = (*_ENGINE, *_VLLM)
