"""Claims of the DLPM paper's Figures 1, 4 and 8 to 12 fail when the figures disagree."""

import pytest

from fairserve.benchmarks.reproduce.dlpm import (
    figure1,
    figure4,
    figure8,
    figure9,
    figure10,
    figure11,
    figure12,
)
from fairserve.benchmarks.reproduce.dlpm.systems import OURS, PUBLISHED
from fairserve.benchmarks.reproduce.dlpm.trends import dominates, rises, rising_pairs
from fairserve.benchmarks.reproduce.report import Row, Spread

QUANTA = (1_000, 300_000)
CLIENTS = (5, 20)


def row(name, **figures):
    return Row(name, {column: Spread(v, v, v) for column, v in figures.items()})


def named(figures):
    return {
        name: Row(name, {column: Spread(v, v, v) for column, v in columns.items()})
        for name, columns in figures.items()
    }


def failed(checks):
    return [check.claim for check in checks if not check.holds]


def only_failed(checks, *words):
    wrong = failed(checks)
    assert len(wrong) == len(words), wrong
    for claim, part in zip(wrong, words, strict=True):
        assert part in claim


def test_trends_are_recognised():
    assert rising_pairs([1, 2, 3]) == 1.0
    assert rising_pairs([1, 3, 2]) == pytest.approx(2 / 3)
    assert rising_pairs([7]) == 1.0
    rows = [row(str(v), x=v) for v in (1.0, 2.0, 3.0)]
    assert rises("", rows, "x").holds
    assert not rises("", rows, "x", falls=True).holds
    assert rises("", rows[::-1], "x", falls=True).holds
    better, worse, other = row("b", x=2, y=2), row("w", x=1, y=1), row("o", x=3, y=1)
    assert dominates(better, worse, ("x", "y"))
    assert not dominates(other, better, ("x", "y"))
    assert not dominates(better, better, ("x", "y"))


def front(throughput, jain, actual=None):
    return {"tok/s": throughput, "Jain": jain, "Jain actual": jain if actual is None else actual}


FRONT = {
    "vtc": front(100, 1.0),
    "lpm": front(200, 0.4),
    OURS: front(190, 0.99),
    **{
        figure1.row_name(variant, quantum): front(throughput, jain)
        for variant in figure1.VARIANTS
        for quantum, throughput, jain in ((1_000, 120, 0.98), (300_000, 195, 0.5))
    },
}


@pytest.mark.parametrize(
    ("changed", "figures", "words"),
    [
        (None, (), []),
        ("dlpm, Q^u 1,000", (120, 0.9, 0.99), ["of VTC's, Jain (least"]),
        ("dlpm, Q^u 1,000", (120, 0.99, 0.9), ["of VTC's, Jain actual (least"]),
        ("dlpm, Q^u 300,000", (150, 0.5), ["90% of LPM"]),
        ("dlpm, Q^u 300,000", (110, 0.99), ["raises throughput", "lowers Jain's", "90% of LPM"]),
        ("lpm", (210, 0.6), ["dominated by VTC or LPM"] * 2),
        (OURS, (110, 0.9), [f"{OURS} is dominated"]),
    ],
)
def test_claims_of_figure_1(changed, figures, words):
    rows = named(FRONT if changed is None else {**FRONT, changed: front(*figures)})
    only_failed(figure1.claims(rows, QUANTA), *words)


def costs(strawman, indexed, decision):
    return {figure4.STRAWMAN: strawman, figure4.INDEXED: indexed, figure4.DECISION: decision}


def test_claims_of_figure_4():
    places = {
        (1, 200): costs(1, 0.1, 0.02),
        (16, 200): costs(16, 1.0, 0.03),
        (8, 200): costs(8, 0.5, 0.03),
        (8, 50): costs(2, 0.5, 0.03),
        (8, 800): costs(32, 0.6, 0.03),
    }

    def checks(**changes):
        figures = {**places, **{(8, int(k[1:])): v for k, v in changes.items()}}
        return figure4.claims(named(figures), (1, 16), (50, 800))

    only_failed(checks())
    only_failed(checks(q800=costs(10, 0.6, 0.03)), "grows with the global queue")
    only_failed(checks(q800=costs(32, 4.5, 0.03)), "indexed step grows")
    only_failed(checks(q200=costs(0.2, 0.1, 0.03)), "10 times d2lpm's")
    places[16, 200] = costs(6, 1.0, 0.9)
    only_failed(checks(), "grows with the workers", "decision of d2lpm grows", "less than 2%")


FLOODED = {
    "vtc": (100, 0.3, 600, 20, 40),
    "rr-lpm": (110, 16, 400, 13, 28),
    "d2lpm": (120, 1.3, 610, 12, 26),
    OURS: (125, 0.9, 605, 13, 60),
}
"""Tokens/s, response of 0 and 1, their service, response of 2 and 3, its greatest window."""


@pytest.mark.parametrize(
    ("changed", "figures", "words"),
    [
        (None, (), []),
        ("d2lpm", (120, 17, 610, 12, 26), ["0 and 1 wait less than under rr-lpm", "is low"]),
        ("rr-lpm", (110, 16, 607, 13, 28), ["get less service"] * 2),
        ("vtc", (122, 0.3, 600, 12, 25), ["wait longer", "worst window", "less throughput", "2 and 3"]),
    ],
)  # fmt: skip
def test_claims_of_figure_8(changed, figures, words):
    columns = [c.name for c in figure8.COLUMNS if c.name not in ("hit rate", "0, 1: p99")]
    all_figures = FLOODED if changed is None else {**FLOODED, changed: figures}
    rows = named({n: dict(zip(columns, v, strict=True)) for n, v in all_figures.items()})
    only_failed(figure8.claims(rows), *words)


TREES = {
    "vtc": (800, 0.99, 60, 200, 0, 1.0),
    "rr-lpm": (700, 0.8, 30, 400, 0, 2.0),
    "preble": (800, 0.8, 30, 400, 300, 2.0),
    "d2lpm": (400, 0.98, 20, 100, 0, 1.4),
    OURS: (390, 0.98, 20, 100, 0, 1.4),
}
"""End, Jain of actual service, response of all, p99 of 1 and 2, seconds starved, client 0's service."""


@pytest.mark.parametrize(
    ("changed", "figures", "words"),
    [
        (None, (), []),
        (
            "preble",
            (390, 0.99, 30, 90, 0, 2.0),
            ["before preble", "as fast as preble", "under preble", "less equally", "starve ("],
        ),
        ("vtc", (600, 0.94, 10, 200, 0, 1.0), ["as fast as vtc", "than vtc", "nearly equally"]),
        ("d2lpm", (400, 0.98, 20, 100, 5, 1.0), ["client 0 is served more", "never starve"]),
        (OURS, (500, 0.98, 20, 100, 9, 1.4), ["never starve", "ends with d2lpm"]),
    ],
)
def test_claims_of_figure_9(changed, figures, words):
    columns = (
        "end (s)",
        "Jain actual",
        "all: mean response (s)",
        "1, 2: p99",
        "1, 2: starved (s)",
        "client 0 over 1, 2",
    )
    assert set(columns) <= {column.name for column in figure9.COLUMNS}
    all_figures = TREES if changed is None else {**TREES, changed: figures}
    rows = named({n: dict(zip(columns, v, strict=True)) for n, v in all_figures.items()})
    only_failed(figure9.claims(rows), *words)


@pytest.mark.parametrize(
    ("changed", "figures", "words"),
    [
        (None, (), []),
        ((2_000,), (330, 1.0), ["raises throughput"]),
        ((400_000,), (350, 0.9), ["stays within 3%"]),
        (("preble",), (310, 0.9), ["preble: throughput is below"]),
        (("fairserve",), (200, 0.9), ["within 3% of that of D2LPM there"]),
        ((40_000,), (300, 1.0), ["lowers Jain's index a little"]),
    ],
)
def test_claims_of_figure_10(changed, figures, words):
    quanta = (2_000, 40_000, 400_000)
    values = {"vtc": (200, 1.0), "rr-lpm": (210, 0.8), "preble": (220, 0.8), OURS: (299, 0.99)}
    values |= {2_000: (250, 1.0), 40_000: (300, 0.98), 400_000: (302, 0.9)}
    rows = {}
    for kind in figure10.KINDS:
        own = dict(values)
        if changed is not None and kind == figure10.MISBEHAVING:
            own[changed[0]] = figures
        for what, (throughput, jain) in own.items():
            name = figure10.row_name(kind, what)
            rows |= named({name: {"tok/s": throughput, "Jain": jain}})
    only_failed(figure10.claims(rows, quanta), *words)


@pytest.mark.parametrize(
    ("changed", "rates", "words"),
    [
        (None, (), []),
        (OURS, (80, 90), ["fairserve: service rate comparable"]),
        ("vtc", (99, 98), ["above VTC's"] * 2),
        ("lpm", (100, 101), ["lpm: more clients"]),
        ("vtc", (50, 30), ["vtc: its service rate changes less"]),
    ],
)
def test_claims_of_figure_11(changed, rates, words):
    values = {"vtc": (50, 49), "lpm": (100, 95), "dlpm": (98, 93), PUBLISHED: (98, 93)}
    values |= {OURS: (105, 99)}
    if changed is not None:
        values[changed] = rates
    rows = named(
        {
            figure11.row_name(name, number): {"service/s": rate}
            for name, of_name in values.items()
            for number, rate in zip(CLIENTS, of_name, strict=True)
        }
    )
    only_failed(figure11.claims(rows, CLIENTS), *words)


MIX = {
    "vtc": (320, 0.7, 18, 0.4, 20, 120),
    "lpm": (330, 0.5, 12, 20, 6, 110),
    "dlpm": (300, 0.6, 10, 2, 10, 100),
    PUBLISHED: (300, 0.6, 10, 1, 10, 100),
    OURS: (300, 0.65, 10, 3, 10, 100),
}
"""End, Jain of actual service, response of all, of chats, of trees, and duration of programs."""


@pytest.mark.parametrize(
    ("changed", "figures", "words"),
    [
        (None, (), []),
        (
            PUBLISHED,
            (325, 0.8, 13, 11, 10, 115),
            ["sooner than lpm", "under lpm", "before vtc's end", "half as long", "less evenly"],
        ),
        ("lpm", (330, 0.5, 12, 20, 21, 110), ["lpm: the client with trees"]),
    ],
)
def test_claims_of_figure_12(changed, figures, words):
    columns = (
        "end (s)",
        "Jain actual",
        "all: mean response (s)",
        "chat: mean response (s)",
        "trees: mean response (s)",
        "all: program (s)",
    )
    assert set(columns) <= {column.name for column in figure12.COLUMNS}
    all_figures = MIX if changed is None else {**MIX, changed: figures}
    rows = named({n: dict(zip(columns, v, strict=True)) for n, v in all_figures.items()})
    only_failed(figure12.claims(rows), *words)
