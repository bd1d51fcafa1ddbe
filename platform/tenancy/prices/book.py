"""In-memory price table: control looks up the price of a model at a time, once per call."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from fairserve.platform.db.contracts import Price
from fairserve.throttling.quotas.price import FREE, TokenPrice

ANY_MODEL = "*"


class PriceBook:
    """All prices with their history, not changed once control has it."""

    def __init__(self, prices: Iterable[tuple[str, float, TokenPrice]] = ()) -> None:
        self._times: dict[str, list[float]] = {}
        self._prices: dict[str, list[TokenPrice]] = {}
        for model, valid_from, price in prices:
            self.add(model, valid_from, price)

    def add(self, model: str, valid_from: float, price: TokenPrice) -> None:
        """Add a price, valid from a time (UTC epoch seconds) until the model's next price."""
        times = self._times.setdefault(model, [])
        place = bisect_right(times, valid_from)
        times.insert(place, valid_from)
        self._prices.setdefault(model, []).insert(place, price)

    def items(self) -> Iterator[tuple[str, float, TokenPrice]]:
        """Yield the prices as arguments of :meth:`add`, in an order that makes an equal book."""
        for model, times in self._times.items():
            for valid_from, price in zip(times, self._prices[model], strict=True):
                yield model, valid_from, price

    def at(self, model: str, moment: float, base: str = "") -> TokenPrice:
        """Return the model's price, else that of its ``base`` model, of ``*``, or ``FREE``."""
        for name in (model, base, ANY_MODEL):
            place = bisect_right(self._times.get(name, ()), moment)
            if place:
                return self._prices[name][place - 1]
        return FREE


def entry_of(row: Price) -> tuple[str, float, TokenPrice]:
    """Return a row of the price table as arguments of :meth:`PriceBook.add`."""
    price = TokenPrice(
        row.input_tokens,
        row.cached_tokens,
        row.output_tokens,
        row.id,
        row.flex_multiplier,
        row.priority_multiplier,
        row.reasoning_tokens,
    )
    return row.model, row.valid_from.timestamp(), price
