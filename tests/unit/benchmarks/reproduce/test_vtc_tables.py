"""The shipped schedulers reproduce the tables of the VTC paper."""

from itertools import permutations

import pytest
from shared_traces import shared_trace

from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.reproduce.vtc import tables
from fairserve.benchmarks.reproduce.vtc.tables import (
    OURS,
    TABLES,
    vtc_table2,
    vtc_tables,
)
from fairserve.scheduling.registry import SYSTEMS

ORDERS = ["order by average", "order by maximum"]
NOT_BEATEN = (
    f"no system without an oracle beats {OURS} on average difference and throughput at once"
)


def replaced(monkeypatch, **systems):
    """Register other systems under these names."""
    known = {name: SYSTEMS[name] for name in SYSTEMS}
    other = {name.replace("_", "-"): SYSTEMS[system] for name, system in systems.items()}
    monkeypatch.setattr(tables, "SYSTEMS", {**known, **other})


@pytest.mark.deep
def test_table_2_is_reproduced_on_the_recorded_trace():
    """With one seed there is no spread, so systems within 5 % in the paper may be in any order.

    VTC's maximum is not checked either: a delay of decode steps moves it by half, and the report's
    is the median of 25.
    """
    folder = shared_trace("vtc_real_trace.csv.gz").parent
    report = vtc_table2(Setting(traces=folder, seeds=1))
    assert [row.name for row in report.rows] == [*TABLES[2]["published"], OURS]
    assert [len(row.published) for row in report.rows] == [4] * len(TABLES[2]["published"]) + [0]
    checks = {check.claim: check for check in report.checks}
    assert len(checks) == 3 * len(TABLES[2]["published"]) + 3
    fragile = {*ORDERS, "vtc: maximum within 25 %"}
    assert not [c for claim, c in checks.items() if claim not in fragile and not c.holds]
    apart = 0
    for low, high in permutations(report.rows[:-1], 2):
        for column in ("avg", "max"):
            vtc = column == "max" and "vtc" in (low.name, high.name)
            if not vtc and low.published[column] < 0.95 * high.published[column]:
                apart += 1
                seen = low.measured[column].value, high.measured[column].value
                assert seen[0] < seen[1], (low.name, high.name, column)
    assert apart > 40


@pytest.mark.parametrize("number", [5, 6])
@pytest.mark.deep
def test_prediction_lowers_the_difference(number):
    """In a quarter of the ten minutes the order is visible; the published maximum occurs later."""
    [report] = vtc_tables(Setting(seeds=2, scale=0.25), (number,))
    assert [row.name for row in report.rows] == [*TABLES[number]["published"], OURS]
    checks = {check.claim: check for check in report.checks}
    for claim in [*ORDERS, NOT_BEATEN]:
        assert checks[claim].holds, checks[claim].seen
    assert checks[ORDERS[0]].seen == "vtc-oracle < vtc-noisy < vtc"


@pytest.mark.deep
def test_the_order_is_wrong_if_vtc_knows_the_future(monkeypatch):
    replaced(monkeypatch, vtc="vtc-oracle", vtc_oracle="vtc")
    [report] = vtc_tables(Setting(seeds=1, scale=0.25), (5,))
    checks = {check.claim: check for check in report.checks}
    assert not checks[ORDERS[0]].holds
    assert "vtc-oracle" in checks[ORDERS[0]].seen
