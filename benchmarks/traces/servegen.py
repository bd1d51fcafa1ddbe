"""ServeGen's clients: requests sampled from a fitted model, which is not a log of requests.

Two files form a trace. ``*_rates.csv``: for each client and window of 600 s, the request rate and
the distribution of the times between requests. ``*_lengths.jsonl``: for each client, every six
hours, 26 quantiles of each length.

A window gets ``rate * 600`` requests; the times between them are drawn from the named distribution.
If they fill less than the window, they form a burst that begins at a random moment of it; if they
fill more (the fits of heavy tails do), all are scaled down to fit. Lengths are drawn independently
by inverse CDF, linear between the quantiles, from the client's latest record at or before the
window. Text, image, audio and video tokens together are the prompt.

Departure from the source's generator, which reuses one random number for all lengths of a request,
so that the longest prompt always has the longest output.

Weakness: real lengths of a request are neither independent nor fully dependent. Clients without a
length record are skipped, which for some models is most of the traffic. Prefixes are unknown.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairserve.benchmarks.traces.flat import flat_trace, single_call
from fairserve.engine.simulated.traces.defaults import Defaults
from fairserve.engine.simulated.traces.lines import TraceLine, read_lines
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceError

RATES_HEADER = ("client", "t_s", "rate_rps", "iat_cv", "dist", "shape", "scale")
DISTRIBUTIONS = ("Gamma", "Weibull")
WINDOW_S = 600.0
QUANTILES = (
    *(0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65),
    *(0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.999, 1.0),
)
PROMPT_KEYS = ("input_tokens", "text_tokens", "image_tokens", "audio_tokens", "video_tokens")
MOST_REQUESTS = 2_000_000

_PAIR = re.compile(r"(?P<stem>.*)_(rates\.csv|lengths\.jsonl)(\.gz)?")


@dataclass(frozen=True, slots=True)
class ServeGenOptions:
    """Options of the sampling: time range, density and seed."""

    from_s: float = 0.0
    to_s: float | None = None
    """End of the range, exclusive; None means 600 s after ``from_s``."""
    rate_factor: float = 1.0
    """Factor on all rates; bursts keep their duration."""
    seed: int = 0
    """Random seed; a window's requests depend on seed, client and window, not on the range."""

    def __post_init__(self) -> None:
        if not 0 <= self.from_s < self.end_s < math.inf:
            raise TraceError(
                f"from_s {self.from_s}, to_s {self.to_s}: 0 <= from_s < to_s is allowed"
            )
        if not 0 < self.rate_factor < math.inf:
            raise TraceError(f"rate_factor {self.rate_factor}: above 0 and finite is allowed")
        if self.seed < 0:
            raise TraceError(f"seed {self.seed}: 0 or above is allowed")

    @property
    def end_s(self) -> float:
        """Return the end of the range in the time of the file."""
        return self.from_s + WINDOW_S if self.to_s is None else self.to_s


@dataclass(frozen=True, slots=True)
class _Window:
    line: TraceLine
    client: int
    start_s: float
    rate_rps: float
    distribution: str
    shape: float
    scale_s: float


@dataclass(frozen=True, slots=True)
class _Lengths:
    prompt_parts: tuple[list[float], ...]
    output: list[float]


def read_servegen(
    path: Path, *, defaults: Defaults = Defaults(), options: ServeGenOptions = ServeGenOptions()
) -> Trace:
    """Sample the requests of ``[from_s, to_s)``; ``from_s`` becomes 0.

    ``path`` is either file of the pair; the other one is beside it. Clients become users. The same
    options give the same trace. Raises `TraceError` for a missing sibling, a distribution other
    than Gamma or Weibull, quantiles that decrease or are not 26, no request in the range, or more
    than 2,000,000 expected ones.
    """
    rates_path, lengths_path = servegen_pair(path)
    records = _read_lengths(lengths_path)
    windows = [
        window
        for window in _read_rates(rates_path)
        if window.start_s < options.end_s and window.start_s + WINDOW_S > options.from_s
    ]
    expected = sum(w.rate_rps for w in windows if w.client in records) * WINDOW_S
    if expected * options.rate_factor > MOST_REQUESTS:
        raise TraceError(
            f"{rates_path}: about {expected * options.rate_factor:.0f} requests in "
            f"[{options.from_s:g}, {options.end_s:g}) s; at most {MOST_REQUESTS} are allowed: "
            "give a shorter range or a smaller rate_factor"
        )
    interactions: list[Interaction] = []
    for window in windows:
        lengths = _latest(records.get(window.client), window.start_s)
        if lengths is not None:
            interactions += _sampled(window, lengths, defaults, options)
    if not interactions:
        raise TraceError(
            f"{rates_path}: no request in [{options.from_s:g}, {options.end_s:g}) s; give another range"
        )
    return flat_trace(rates_path.with_name(rates_path.name.replace("_rates", "")), interactions)


def servegen_pair(path: Path) -> tuple[Path, Path]:
    """Return the files ``(rates, lengths)`` to which ``path`` belongs, plain or gzip."""
    match = _PAIR.fullmatch(path.name)
    if not match:
        raise TraceError(
            f"{path}: a ServeGen file is named *_rates.csv or *_lengths.jsonl, with .gz or without"
        )
    found = []
    for kind in ("rates.csv", "lengths.jsonl"):
        names = [f"{match['stem']}_{kind}", f"{match['stem']}_{kind}.gz"]
        candidates = [path.with_name(name) for name in names]
        found.append(next((c for c in [path, *candidates] if c in candidates and c.exists()), None))
        if found[-1] is None:
            raise TraceError(f"{path}: needs {names[0]} or {names[1]} beside it")
    rates, lengths = found
    assert rates is not None
    assert lengths is not None
    return rates, lengths


def _read_rates(path: Path) -> Iterator[_Window]:
    lines = read_lines(path)
    next(lines, None)
    for line in lines:
        client, start, rate, _cv, distribution, shape, scale = line.columns(RATES_HEADER)
        window = _Window(
            line,
            line.integer_text(client, "client"),
            line.number_text(start, "t_s"),
            line.number_text(rate, "rate_rps"),
            distribution,
            line.number_text(shape, "shape"),
            line.number_text(scale, "scale"),
        )
        if distribution not in DISTRIBUTIONS:
            raise line.error(f"dist {distribution!r}; allowed are {', '.join(DISTRIBUTIONS)}")
        if not window.shape or not window.scale_s:
            raise line.error("shape and scale must be above 0")
        yield window


def _read_lengths(path: Path) -> dict[int, list[tuple[float, _Lengths]]]:
    """Return the records by client, each with its time, in the order of time."""
    records: dict[int, list[tuple[float, _Lengths]]] = {}
    for line in read_lines(path):
        record = line.json_object()
        client = line.integer(record.get("client"), "client")
        time_s = line.number_at_least_zero(record.get("t_s"), "t_s")
        parts = tuple(_quantiles(line, record, key) for key in PROMPT_KEYS if key in record)
        if not parts:
            raise line.error(f"needs the quantiles of one of {', '.join(PROMPT_KEYS)}")
        lengths = _Lengths(parts, _quantiles(line, record, "output_tokens"))
        records.setdefault(client, []).append((time_s, lengths))
    for of_client in records.values():
        of_client.sort(key=lambda item: item[0])
    return records


def _quantiles(line: TraceLine, record: dict[str, Any], key: str) -> list[float]:
    values = record.get(key)
    if not isinstance(values, list) or len(values) != len(QUANTILES):
        raise line.error(f"{key} must be a list of {len(QUANTILES)} quantiles")
    numbers = [line.number_at_least_zero(value, f"each of {key}") for value in values]
    if any(a > b for a, b in pairwise(numbers)):
        raise line.error(f"{key}: quantiles must not fall")
    return numbers


def _latest(records: list[tuple[float, _Lengths]] | None, time_s: float) -> _Lengths | None:
    if not records:
        return None
    index = bisect.bisect_right(records, time_s, key=lambda item: item[0])
    return records[index - 1][1] if index else None


def _sampled(
    window: _Window, lengths: _Lengths, defaults: Defaults, options: ServeGenOptions
) -> Iterator[Interaction]:
    rng = np.random.default_rng([options.seed, window.client, int(window.start_s)])
    expected = window.rate_rps * WINDOW_S * options.rate_factor
    # Rates are rounded in the file: 0.0766667 stands for 46 requests.
    whole = round(expected)
    requests = whole if abs(expected - whole) < 0.01 else math.floor(expected + rng.random())
    arrivals_s = _arrivals(window, requests, window.scale_s / options.rate_factor, rng)
    arrivals_s += window.start_s - options.from_s
    prompts = sum(_drawn(quantiles, requests, rng) for quantiles in lengths.prompt_parts)
    outputs = _drawn(lengths.output, requests, rng)
    columns = zip(arrivals_s.tolist(), np.rint(prompts).tolist(), outputs.tolist(), strict=True)
    end_s = options.end_s - options.from_s
    for index, (arrival_s, prompt_tokens, output_tokens) in enumerate(columns):
        if 0 <= arrival_s < end_s:
            yield single_call(
                f"{window.client}-{window.start_s:g}-{index}",
                app="servegen",
                user=str(window.client),
                arrival_s=arrival_s,
                prompt_tokens=max(int(prompt_tokens), 1),
                output_tokens=round(output_tokens),
                defaults=defaults,
            )


def _arrivals(
    window: _Window, requests: int, scale_s: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return arrivals in seconds after the window's start, ascending."""
    if window.distribution == "Gamma":
        gaps_s = rng.gamma(window.shape, scale_s, requests + 1)
    else:
        gaps_s = rng.weibull(window.shape, requests + 1) * scale_s
    total_s = float(gaps_s.sum())
    if not math.isfinite(total_s):
        raise window.line.error(f"shape {window.shape:g}: too heavy a tail to sample")
    times_s = np.cumsum(gaps_s[:-1])
    if total_s > WINDOW_S:
        times_s *= WINDOW_S / total_s
    else:
        times_s += rng.uniform(0.0, WINDOW_S - total_s)
    # Rounding may place the last ones at the end, which belongs to the next window.
    return np.minimum(times_s, np.nextafter(WINDOW_S, 0.0))


def _drawn(quantiles: list[float], count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return np.interp(rng.random(count), QUANTILES, quantiles)
