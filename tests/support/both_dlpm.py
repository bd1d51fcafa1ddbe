"""A local scheduler runs DLPM and its naive reference together, and compares every offer."""

from plain_dlpm import PlainDlpm

from fairserve.scheduling.local.dlpm import Dlpm


class BothDlpm:
    """Both schedulers side by side; ``tokens(call)`` matches a waiting call again."""

    def __init__(self, options, tokens, refused=lambda call: None):
        self.options = options
        self.dlpm = Dlpm(options)
        self.plain = PlainDlpm(options, tokens)
        self.refused = refused
        """Called with a call that does not fit."""
        self.walk, self.offered = None, None
        self.offers = self.passes = 0

    def __len__(self):
        assert len(self.dlpm) == len(self.plain.waiting)
        return len(self.dlpm)

    def add(self, call):
        self.dlpm.add(call)
        self.plain.arrivals, arrival = call.arrival - 1, call.arrival
        self.plain.add(call)
        assert call.arrival == arrival

    def close(self):
        if self.walk is not None:
            self.walk.close()
        self.walk = self.offered = None

    def start_pass(self, cache):
        self.close()
        self.passes += 1
        self.dlpm.start_pass(cache)
        self.walk = self.plain.walk()

    def peek(self):
        if self.offered is None:
            self.offered = self.dlpm.peek()
            expected = next(self.walk, None)
            assert self.offered is expected, (self.offered, expected)
            self.offers += 1
        return self.offered

    def accept(self, cached_tokens):
        self.dlpm.accept(cached_tokens)
        self.walk.send(cached_tokens)
        self.offered = None

    def skip(self):
        self.refused(self.offered)
        self.dlpm.skip()
        self.walk.send(None)
        self.offered = None

    def decoded(self, call_id, tokens):
        self.dlpm.decoded(call_id, tokens)
        self.plain.decoded(call_id, tokens)

    def requeue(self, call_id):
        self.close()
        self.dlpm.requeue(call_id)
        self.plain.requeue(call_id)

    def finish(self, call_id):
        self.close()
        self.dlpm.finish(call_id)
        self.plain.finish(call_id)

    def surplus(self, call_id):
        return self.dlpm.surplus(call_id)

    def deficit(self, client_id):
        """Return the deficit, which is equal in both."""
        q = self.dlpm.deficit(client_id)
        assert abs(self.plain.q.get(tuple(client_id.split("/")), 0.0) - q) < 1e-6
        return q
