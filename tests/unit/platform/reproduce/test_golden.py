"""One short run of each family of reproductions, against figures that were written down.

A simulation gives the same figures everywhere: another number here is another coefficient, another
workload or another decision of a scheduler. Where that is meant, write down the new one. The long
runs, which are near the papers' own figures, are marked deep.
"""

import pytest

from fairserve.platform.reproduce.composition import comparison
from fairserve.platform.reproduce.dlpm.figure1 import dlpm_figure1
from fairserve.platform.reproduce.dlpm.figure7 import dlpm_figure7
from fairserve.platform.reproduce.dlpm.figure8 import dlpm_figure8
from fairserve.platform.reproduce.dlpm.figure11 import dlpm_figure11
from fairserve.platform.reproduce.fairserve.mix import simulated_mix
from fairserve.platform.reproduce.fairserve.table3 import fairserve_table3
from fairserve.platform.reproduce.fairserve.table4 import fairserve_table4
from fairserve.platform.reproduce.profiles import levers
from fairserve.platform.reproduce.setting import Setting
from fairserve.platform.reproduce.vtc.figures import synthetic_figure
from fairserve.platform.reproduce.vtc.tables import vtc_table5


def short(scale):
    return Setting(seeds=1, scale=scale)


def table3(monkeypatch):
    simulated_mix.cache_clear()
    report = fairserve_table3(short(0.1))
    simulated_mix.cache_clear()
    return report


def one_lever(monkeypatch):
    few = {levers.DECLARES: levers.LEVERS[levers.DECLARES]}
    return levers.profiles_levers(short(0.1), few)


def questions_beside_all(monkeypatch):
    name = "long-context-qa"
    monkeypatch.setattr(comparison, "WORKLOADS", {name: comparison.WORKLOADS[name]})
    return comparison.composition(short(0.2), workers=(1,))[1]


EXPERIMENTS = {
    "vtc-table5": lambda patch: vtc_table5(short(0.2)),
    "vtc-figure3": lambda patch: synthetic_figure(short(0.2), 3),
    "vtc-figure16": lambda patch: synthetic_figure(short(0.2), 16),
    "dlpm-figure1": lambda patch: dlpm_figure1(short(0.1), (1_000,)),
    "dlpm-figure7": lambda patch: dlpm_figure7(short(0.05), workers=(1,)),
    "dlpm-figure8": lambda patch: dlpm_figure8(short(0.05)),
    "dlpm-figure11": lambda patch: dlpm_figure11(short(0.03), (5,)),
    "fairserve-table3": table3,
    "fairserve-table4": lambda patch: fairserve_table4(short(0.2)),
    "profiles-levers": one_lever,
    "composition": questions_beside_all,
}
FIGURES = {
    "vtc-table5": (
        ("max", "avg", "var", "tok/s"),
        {
            "vtc": (37.8019, 26.1187, 136.4971, 902.5205),
            "vtc-noisy": (14.5202, 11.2573, 10.646, 902.5205),
            "vtc-oracle": (5.7786, 4.8419, 0.8773, 902.5205),
            "fairserve": (5.7786, 4.8419, 0.8773, 902.5205),
        },
    ),
    "vtc-figure3": (
        ("largest difference", "while backlogged", "growth /min", "tok/s"),
        {
            "fcfs": (37152.0311, 23286.298, 26730.4357, 928.4298),
            "vtc": (4319.9689, 2035.0903, 441.0029, 928.4298),
            "fairserve": (2972.1509, 606.6171, -31.8305, 928.4298),
        },
    ),
    "vtc-figure16": (
        (
            "client 2 of client 1",
            "client 3 of client 1",
            "client 4 of client 1",
            "off equal %",
            "off 1:2:3:4 %",
        ),
        {
            "vtc": (1.0353, 1.0603, 1.0603, 3.7534, 87.2491),
            "fairserve": (1.0013, 0.9969, 1.0108, 0.8553, 91.7869),
            "vtc-weighted": (1.8183, 2.6552, 3.5585, 57.5952, 8.5834),
            "fairserve 1:2:3:4": (1.8257, 2.6945, 3.5487, 56.5237, 8.161),
        },
    ),
    "dlpm-figure1": (
        ("tok/s", "Jain", "Jain actual", "hit rate"),
        {
            "vtc": (4674.2675, 0.9957, 0.9957, 0.0024),
            "lpm": (15341.7933, 0.4296, 0.6568, 0.7047),
            "fairserve": (8716.9429, 0.9357, 0.8264, 0.464),
            "dlpm, Q^u 1,000": (12211.0061, 0.678, 0.985, 0.6143),
            "dlpm, published, Q^u 1,000": (10638.3098, 0.6529, 0.9928, 0.5908),
        },
    ),
    "dlpm-figure7": (
        ("tok/s", "Jain", "Jain entitled", "p50 (s)", "p99 (s)", "hit rate"),
        {
            "long-context-qa S1 D=1 vtc": (9871.7367, 1.0, 1.0, 17.3415, 27.223, 0.2306),
            "long-context-qa S1 D=1 rr-lpm": (9871.7367, 1.0, 1.0, 11.7326, 33.6486, 0.2306),
            "long-context-qa S1 D=1 preble": (9871.7367, 1.0, 1.0, 24.0773, 33.6226, 0.2306),
            "long-context-qa S1 D=1 d2lpm": (9871.7367, 1.0, 1.0, 17.8017, 30.3023, 0.2306),
            "long-context-qa S1 D=1 fairserve": (9871.7367, 1.0, 1.0, 17.3415, 27.2272, 0.2306),
            "long-context-qa S2 D=1 vtc": (7216.6282, 1.0, 1.0, 19.2261, 37.0045, 0.081),
            "long-context-qa S2 D=1 rr-lpm": (7216.6282, 1.0, 1.0, 14.269, 21.5295, 0.081),
            "long-context-qa S2 D=1 preble": (7216.6282, 1.0, 1.0, 9.8382, 45.8644, 0.081),
            "long-context-qa S2 D=1 d2lpm": (7216.6282, 1.0, 1.0, 14.6819, 36.8562, 0.081),
            "long-context-qa S2 D=1 fairserve": (7216.6282, 1.0, 1.0, 14.6819, 36.8503, 0.081),
            "tree-of-thoughts S1 D=1 vtc": (2998.5847, 1.0, 1.0, 15.2756, 15.6221, 0.8153),
            "tree-of-thoughts S2 D=1 vtc": (5870.3659, 0.8522, 1.0, 22.751, 23.7643, 0.8138),
            "judge S1 D=1 vtc": (7282.7125, 0.4641, 0.4471, 12.3644, 16.0798, 0.7346),
            "judge S2 D=1 vtc": (5115.6275, 0.4663, 0.448, 10.7424, 14.3109, 0.6183),
        },
    ),
    "dlpm-figure8": (
        (
            "tok/s",
            "hit rate",
            "0, 1: mean response (s)",
            "0, 1: p99",
            "0, 1: service/s in the flood",
            "2, 3: mean response (s)",
            "2, 3: greatest window (s)",
        ),
        {
            "vtc": (2723.904, 0.1848, 0.0509, 0.1089, 163.5896, 0.0545, 0.0552),
            "rr-lpm": (2730.5229, 0.1501, 0.0604, 0.1769, 164.4993, 0.0555, 0.056),
            "d2lpm": (2733.0835, 0.2586, 0.0591, 0.1763, 165.2543, 0.0535, 0.0545),
            "fairserve": (2750.283, 0.3345, 0.0547, 0.1088, 163.6893, 0.051, 0.0519),
        },
    ),
    "dlpm-figure11": (
        ("service/s", "tok/s", "hit rate", "Jain"),
        {
            "vtc, 5 clients": (6662.5764, 6658.4456, 0.3282, 0.9895),
            "lpm, 5 clients": (22415.8849, 22400.5112, 0.802, 0.7612),
            "dlpm, 5 clients": (22415.8849, 22400.5112, 0.802, 0.7612),
            "dlpm, published, 5 clients": (22415.8849, 22400.5112, 0.802, 0.7612),
            "fairserve, 5 clients": (20624.766, 20615.392, 0.7986, 0.9493),
        },
    ),
    "fairserve-table3": (
        (
            "prompt tok/s",
            "decode tok/s",
            "TTFT (s)",
            "requests served %",
            "interactions served %",
            "well-behaved: runs served %",
            "TTFT p99 (s)",
            "difference",
        ),
        {
            "fcfs": (13232.9126, 87.7034, 9.2614, 100.0, 0.0, 100.0, 16.2155, 38.223),
            "rpm-5": (6490.4595, 168.8211, 1.6743, 28.3422, 11.8644, 96.7742, 4.3345, 1.7109),
            "rpm-20": (13253.7984, 89.4552, 8.8695, 32.2581, 0.0, 100.0, 14.7691, 9.7958),
            "vtc": (13295.9911, 112.379, 3.7445, 100.0, 100.0, 100.0, 8.2118, 56.6665),
            "fs-w": (13230.4535, 90.3479, 7.2523, 100.0, 0.0, 100.0, 14.2911, 36.8112),
            "fs-wi": (13348.8287, 78.5743, 7.2945, 100.0, 100.0, 100.0, 15.7892, 42.9516),
            "fairserve": (13184.7574, 90.7689, 7.3314, 100.0, 100.0, 100.0, 5.1736, 36.224),
            "fs-wi, charged at selection": (
                13072.749,
                83.7453,
                6.2423,
                100.0,
                0.0,
                100.0,
                4.1977,
                45.4246,
            ),
            "fairserve, any match within the slack": (
                12930.4562,
                90.7016,
                9.4026,
                100.0,
                0.0,
                100.0,
                18.0914,
                37.0568,
            ),
        },
    ),
    "fairserve-table4": (
        (
            "app-14: served",
            "app-7: served",
            "app-12: served",
            "app-14: prompt tok/s",
            "app-7: prompt tok/s",
            "app-12: prompt tok/s",
            "tokens wasted",
            "Jain (typical calls)",
        ),
        {
            "fcfs": (0.0, 0.0, 1.0, 8062.8813, 3926.6937, 1549.2685, 0.0, 0.7055),
            "rpm-5": (0.0, 0.0, 1.0, 7456.2934, 4556.387, 1485.6348, 0.0, 0.7591),
            "rpm-20": (0.0, 0.0, 1.0, 8062.8813, 3926.6937, 1549.2685, 0.0, 0.7055),
            "vtc": (0.0, 0.0, 1.0, 7230.7135, 4556.387, 1664.9205, 0.0, 0.7738),
            "fs-w": (0.0, 0.0, 1.0, 8062.8813, 3926.6937, 1298.9538, 0.0, 0.6645),
            "fs-wi": (0.0, 0.0, 1.0, 8062.8813, 3926.6937, 1298.9538, 0.0, 0.6645),
            "fairserve": (0.0, 0.0, 1.0, 7634.6598, 4556.387, 1272.3806, 0.0, 0.8032),
            "fs-wi, charged at selection": (
                0.0,
                0.0,
                1.0,
                7484.2454,
                4556.387,
                1521.8179,
                0.0,
                0.8082,
            ),
            "fairserve, any match within the slack": (
                0.0,
                0.0,
                1.0,
                7202.4273,
                4556.387,
                1664.9205,
                0.0,
                0.7495,
            ),
        },
    ),
    "profiles-levers": (
        (
            "gain, declared only",
            "others",
            "gain, learned",
            "others, learned",
            "last quarter, learned",
            "gains until run",
        ),
        {
            "declares 10x": (2.3951, 0.256, 1.9161, 0.5156, 1.9161, 14.0),
        },
    ),
    "composition": (
        ("tok/s", "p99 TTFT (s)", "Jain entitled", "Jain extend", "p99 run (s)", "hit rate"),
        {
            "long-context-qa D=1 vtc": (686.9863, 58.4169, 0.9144, 0.9144, 80.7448, 0.4929),
            "long-context-qa D=1 rr-lpm": (933.538, 64.7562, 0.3333, 0.3333, 73.976, 0.5587),
            "long-context-qa D=1 preble": (1851.7635, 64.7525, 0.5825, 0.5825, 71.7868, 0.5587),
            "long-context-qa D=1 cache-aware": (933.538, 64.7562, 0.3333, 0.3333, 73.976, 0.5587),
            "long-context-qa D=1 d2lpm": (1102.9101, 59.474, 0.9135, 0.9135, 75.1288, 0.5587),
            "long-context-qa D=1 fs-wi": (644.3796, 59.9692, 0.5781, 0.5781, 84.3639, 0.479),
            "long-context-qa D=1 fairserve": (1370.573, 39.3514, 0.7759, 0.7759, 74.9972, 0.5587),
        },
    ),
}
"""By experiment: the columns that are compared, and by row their figures."""


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_figures_are_those_that_were_written_down(name, monkeypatch):
    columns, expected = FIGURES[name]
    rows = {row.name: row.measured for row in EXPERIMENTS[name](monkeypatch).rows}
    for row, figures in expected.items():
        seen = tuple(rows[row][column].value for column in columns)
        assert seen == pytest.approx(figures, rel=1e-5, abs=6e-5), row
