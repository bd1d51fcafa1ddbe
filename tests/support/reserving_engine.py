"""One worker under DLPM that reserves the output of each admitted call, without an engine."""

from one_worker import FixedCache

from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.local.dlpm import Dlpm


class Engine:
    """One worker that reserves prompt and output, decodes one token per call and step."""

    def __init__(self, options, capacity):
        self.scheduler = Dlpm(options)
        self.options, self.capacity, self.held = options, capacity, 0
        self.cache = FixedCache()
        self.waiting = {}
        self.running = {}
        self.service, self.order = {}, []
        self.numbers = 0

    def add(self, client, prompt_tokens, output, matched=0, weight=1.0):
        self.numbers += 1
        call_id = f"{client}-{self.numbers}"
        self.cache.matches[call_id] = min(matched, prompt_tokens - 1)
        call = LocalCall(call_id, client, prompt_tokens, output, weight=weight)
        self.scheduler.add(call)
        self.waiting[call_id] = call
        self.service.setdefault(client, 0.0)
        return call_id

    def step(self):
        self.scheduler.start_pass(self.cache)
        admitted = 0
        while (call := self.scheduler.peek()) is not None:
            matched = self.cache.matched_tokens(call)
            need = call.prompt_tokens - matched + call.max_output_tokens
            if self.held + need > self.capacity:
                self.scheduler.skip()
                continue
            self.scheduler.accept(matched)
            del self.waiting[call.call_id]
            admitted += 1
            self.held += need
            self.running[call.call_id] = [call, need, 0]
            self.order.append(call.call_id)
            self.service[call.client_id] += self.options.we * (call.prompt_tokens - matched)
        for call_id, state in list(self.running.items()):
            call = state[0]
            state[2] += 1
            self.scheduler.decoded(call_id, 1)
            self.service[call.client_id] += self.options.wq
            if state[2] == call.max_output_tokens:
                del self.running[call_id]
                self.held -= state[1]
                self.scheduler.finish(call_id)
        return admitted
