"""The shipped schedulers reproduce the tables of the VTC paper."""

from itertools import permutations

import pytest
from shared_traces import shared_trace

from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.reproduce.vtc.tables import (
    OURS,
    TABLES,
    vtc_table2,
)

ORDERS = ["order by average", "order by maximum"]


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
