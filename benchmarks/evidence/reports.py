"""Registry of the reports under ``benchmarks/results``: the command and the files of each.

A new report is one entry here. A simulated one has short cases, by which it is compared with the
code; a measured one names the revision that was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

UNKNOWN = "unknown"
_RESULTS = "benchmarks/results"
_PAPERS = f"{_RESULTS}/papers"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One report: its files and their origin. Paths are relative to the results folder."""

    name: str
    command: str
    """Command with each setting that changes figures, without file names."""
    document: str
    """File with the figures, Markdown or JSON."""
    files: tuple[str, ...] = ()
    """Patterns of further files of the report, such as plots."""
    output: str = ""
    """End of the command line, which names the output files."""
    takes: str = UNKNOWN
    """Expected time on two cores."""
    needs: str = ""
    """Hardware or software that not every machine has; such a report may be missing."""
    short_cases: tuple[str, ...] = ()
    """Names in :data:`fairserve.benchmarks.evidence.short_cases.SHORT_CASES`, if it is simulated."""

    @property
    def full_command(self) -> str:
        """Return the command to be typed in the root of a checkout."""
        return f"{self.command} {self.output}".rstrip()

    @property
    def draws(self) -> bool:
        """Return whether the report includes plots."""
        return any(each.endswith(".png") for each in self.files)


def command_line(command: str, settings: Mapping[str, object]) -> str:
    """Return a command with its settings as flags, in order.

    A flag whose value is None or False is omitted; True gives a flag without a value.
    """
    flags = [
        f" --{name}" if value is True else f" --{name} {value}"
        for name, value in settings.items()
        if value is not None and value is not False
    ]
    return command + "".join(flags)


def reproduce_command(name: str, seeds: int, plot: bool) -> str:
    """Return the command of an experiment. The number of processes does not affect figures."""
    return command_line(f"fairserve reproduce {name}", {"seeds": seeds, "plot": plot})


def _experiment(
    name: str, seeds: int, takes: str = UNKNOWN, *, pictures: str = "", short_cases: str = ""
) -> Evidence:
    """Return a report of ``fairserve reproduce``; its short case has its name unless it has several."""
    folder = f"{_PAPERS} " if pictures else ""
    return Evidence(
        name,
        reproduce_command(name, seeds, plot=bool(pictures)),
        f"papers/{name}.md",
        (f"papers/{pictures}",) if pictures else (),
        f"{folder}--markdown {_PAPERS}/{name}.md",
        takes,
        short_cases=tuple((short_cases or name).split()),
    )


def _engine(
    name: str,
    settings: Mapping[str, object],
    document: str = "",
    *,
    takes: str,
    needs: str = "",
) -> Evidence:
    """Return a report of ``fairserve bench engine``, optionally with a further document."""
    files = (f"{name}-costs.json", document) if document else (f"{name}-costs.json",)
    return Evidence(
        name,
        command_line("fairserve bench engine", {**settings, "rounds": 5, "fit": True}),
        f"{name}.json",
        files,
        f"{_RESULTS}/{name}-costs.json --json {_RESULTS}/{name}.json",
        takes,
        needs,
    )


def _engine_on_gpu(shape: str) -> Evidence:
    settings = {"shape": shape, "device": "cuda", "dtype": "bfloat16", "limit-s": 120}
    needs = "an NVIDIA GPU (benchmarks/gpu.sh)"
    return _engine(f"gpu-{shape}", settings, takes="5 min", needs=needs)


_EVIDENCE = (
    _experiment("headline", 5, "15 min", pictures="headline.png"),
    _experiment("vtc-table2", 25, "4 min"),
    _experiment("vtc-tables", 25, "8 min"),
    _experiment(
        "vtc-figures",
        3,
        "4 min",
        pictures="vtc-figure*.png",
        short_cases="vtc-figure3 vtc-figure16",
    ),
    _experiment("dlpm-figure1", 3, pictures="dlpm-figure1.png"),
    _experiment("dlpm-figure7", 3, pictures="dlpm-figure7.png"),
    _experiment(
        "fairserve-paper",
        5,
        "6 min",
        short_cases="fairserve-table3 fairserve-table4 fairserve-figure8 fairserve-figure9",
    ),
    _experiment("tuning", 1, "10 min"),
    _experiment("memory", 3, "40 min"),
    _experiment("ablation", 3, "15 min"),
    _experiment("profiles", 3, "8 min", pictures="profiles.png"),
    Evidence(
        "scheduling",
        command_line("fairserve bench scheduling", {"rounds": 9}),
        "scheduling.json",
        ("scheduling.md",),
        f"--json {_RESULTS}/scheduling.json",
        "3 min",
    ),
    _engine("engine", {"shape": "100m"}, "engine.md", takes="15 min"),
    _engine_on_gpu("8b"),
    _engine_on_gpu("0.6b"),
    Evidence(
        "usage",
        command_line("fairserve bench usage", {"rows": 10_000_000, "rounds": 7}),
        "usage.md",
        output="--database-url URL",
        takes="1 h",
        needs="an empty PostgreSQL database and 12 GB of disk",
    ),
    Evidence(
        "soak",
        command_line("fairserve bench soak", {"calls": 100_000, "waiting": 9600}),
        "soak.md",
        takes="20 min",
        needs="an idle machine",
    ),
    Evidence(
        "gateway",
        command_line("fairserve bench gateway", {"litellm": ".venv-litellm", "rounds": 5}),
        "gateway.json",
        ("gateway.md",),
        output=f"--json {_RESULTS}/gateway.json",
        takes="30 min",
        needs="LiteLLM in .venv-litellm (make litellm), and an idle machine",
    ),
    Evidence(
        "vllm",
        command_line(
            "python benchmarks/scripts/vllm_scheduling.py", {"shares-rounds": 15, "costs-rounds": 5}
        ),
        "vllm.json",
        output=f"--json {_RESULTS}/vllm.json",
        needs="vLLM, in the environment of make test-vllm",
    ),
)

EVIDENCE: Mapping[str, Evidence] = {each.name: each for each in _EVIDENCE}
"""All reports by name."""
