"""The selections of WSC by a scan of the whole queue: what its indexes must find.

It reads the state of a feeder and uses none of its heaps, rankings, lanes or groups.
"""

import math


def cached_share(tree, keys, mask):
    """Return the sixteenths of a prompt that are cached; rounded down where others hold more."""
    anywhere, match = tree.match(keys, -1)[0], tree.match(keys, mask)[0]
    return 16 * anywhere // (len(keys) + 1) * match // anywhere if match else 0


class PlainSelection:
    """One selection of a feeder, for these workers, without the calls of some restrictions."""

    def __init__(
        self,
        feeder,
        open_workers,
        excluded=frozenset(),
        held=frozenset(),
    ):
        self.feeder, self.options, self.open = feeder, feeder.options, open_workers
        everything = [(entry.node, entry) for entry in feeder._queued.values()]
        self.may_continue = [
            (node, entry) for node, entry in everything if entry.call.restriction not in excluded
        ]
        self.entries = [
            (node, entry) for node, entry in self.may_continue if entry.call.restriction not in held
        ]

    def peek(self):
        if self.feeder.runs_first:
            match = self.match()
            if match is None or match.interaction_id not in self.feeder._active_runs:
                first = next(iter(self.active_in_order()), None)
                if first is not None:
                    return self.first_of_run(first, self.may_continue)
            return self.peek_fair()
        if not self.entries:
            return None
        first = None
        if self.options.interaction_priority and not self.is_bypassed():
            first = next(iter(self.active_in_order()), None)
        return self.match() or self.first_of_run(first or self.oldest())

    def peek_fair(self):
        if not self.entries:
            return None
        return self.match() or self.first_of_run(self.oldest())

    def is_bypassed(self):
        return 0 < self.options.max_bypass <= self.oldest()[1].bypassed

    def match(self):
        if not self.entries or self.is_bypassed():
            return None
        chosen = self.greatest_share()
        if chosen is None or not self.worth(chosen, self.oldest()):
            return None
        return self.first_of_run(chosen, needs_match=True)

    # --- counters ---------------------------------------------------------------------------------

    def oldest(self):
        found, depth = self.entries, 0
        while True:
            below = {}
            for node, entry in found:
                below.setdefault(node.line[depth], []).append((node, entry))

            def place(child, below=below):
                first = min(entry.seq for _, entry in below[child])
                return child.served + child.reserved, first, child.name

            child = min(below, key=place)
            found, depth = below[child], depth + 1
            if child.line:
                return min(found, key=lambda pair: pair[1].seq)

    def within(self, node, slack, own=0):
        """Return the counters of a client within a slack, below the outermost level plus ``own``."""
        counters = []
        for each in node.line:
            siblings = {
                child
                for other, _ in self.entries
                for child in other.line
                if child.parent is each.parent
            }
            counters.append(each.served + each.reserved)
            if siblings:
                least = min(child.served + child.reserved for child in siblings)
                if counters[-1] > least + slack + (own if len(counters) > 1 else 0):
                    return None
        return tuple(counters)

    # --- locality and progress --------------------------------------------------------------------

    def greatest_share(self):
        slack, locality = self.options.locality_slack, self.feeder._locality
        if not slack:
            return None
        mask, places = locality.workers.mask(self.open), []
        for node, entry in self.entries:
            share = cached_share(locality.tree, locality.keys(entry.call.call_id), mask)
            counters = self.within(node, slack) if share else None
            if counters is not None:
                places.append(((-share, counters, entry.seq), node, entry))
        return min(places, key=lambda place: place[0])[1:] if places else None

    def share(self, call):
        matched = self.feeder._locality.matched_tokens(call, self.open)
        return matched / max(1, call.prompt_tokens)

    def worth(self, chosen, oldest):
        if not self.options.locality_gain or chosen[0] is oldest[0]:
            return True
        gain = self.share(chosen[1].call) - self.share(oldest[1].call)
        return gain > 0 and self.within(chosen[0], self.options.locality_slack * gain) is not None

    def active_in_order(self):
        firsts = {}
        for node, entry in self.may_continue if self.feeder.runs_first else self.entries:
            if entry.call.interaction_id in self.feeder._active_runs:
                own = self.own_calls(entry.call)
                counters = self.within(node, self.options.interaction_slack, own)
                if counters is None:
                    continue
                place = counters, entry.seq
                if node not in firsts or place < firsts[node][0]:
                    firsts[node] = place, node, entry
        return [place[1:] for place in sorted(firsts.values(), key=lambda place: place[0])]

    def own_calls(self, call):
        """Return the power of two above the run's calls so far."""
        return 2 ** (math.floor(math.log2(call.run_depth)) + 1) if call.run_depth else 0

    def first_of_run(self, chosen, among=None, *, needs_match=False):
        """Return the call of the run with the longest path to its end, if it may replace this one."""
        call = chosen[1].call
        everything = self.feeder._queued.values()
        longer = [
            entry
            for entry in everything
            if entry.call.interaction_id == call.interaction_id and entry.call.remaining_tokens > 0
        ]
        if self.options.run_order != "critical_path" or not longer:
            return call
        first = min(longer, key=lambda entry: (-entry.call.remaining_tokens, entry.seq)).call
        among = self.entries if among is None else among
        allowed = any(entry.call is first for _, entry in among)
        if not allowed or first.remaining_tokens <= call.remaining_tokens:
            return call
        matched = self.feeder._locality.matched_tokens
        if needs_match and matched(first, self.open) < matched(call, self.open):
            return call
        return first
