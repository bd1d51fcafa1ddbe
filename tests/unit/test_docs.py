"""Links in the documents resolve, and every policy and command is described."""

import re
from pathlib import Path

from typer.main import get_command

from fairserve.scheduling.registry import FEEDERS, LOCAL_SCHEDULERS, ROUTERS, SYSTEMS
from fairserve.throttling.registry import THROTTLES

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = (ROOT / "README.md").read_text()
POLICIES = (ROOT / "docs" / "policies.md").read_text()
SAME_AS = {("tenant", "suspend"), ("tenant", "resume"), ("tenant", "show"), ("app", "show")}
"""Commands without an example, similar to another noun's that has one."""


def found_in_documents(pattern):
    """Return every match of the pattern's group, with its document."""
    found = [
        (document, match)
        for document in DOCUMENTS
        for match in re.findall(pattern, document.read_text())
    ]
    assert len(found) > 20
    return found


def test_links_resolve():
    dead = [
        f"{document.relative_to(ROOT)}: {target}"
        for document, target in found_in_documents(r"\]\(([^)#\s]+)")
        if not target.startswith(("http:", "https:", "mailto:"))
        if not (document.parent / target).exists()
    ]
    assert not dead


def test_links_have_an_end():
    broken = {
        str(document.relative_to(ROOT)): texts
        for document in DOCUMENTS
        if (texts := re.findall(r"\[[^\]`\n]*\.(?:py|md)\)", document.read_text()))
    }
    assert broken == {}


def anchors(document):
    """Return the anchors of a document's headings, as GitHub derives them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_links_to_headings_resolve():
    dead = [
        f"{document.relative_to(ROOT)}: {path}#{anchor}"
        for document, (path, anchor) in found_in_documents(r"\]\(((?:[^):#\s]+\.md)?)#([\w-]+)\)")
        if anchor not in anchors(document.parent / path if path else document)
    ]
    assert not dead


def test_named_files_exist():
    """Names are paths in backticks that look like files of this repository."""
    missing = [
        f"{document.relative_to(ROOT)}: {name}"
        for document, name in found_in_documents(r"`([a-z_]+/[\w/.-]+\.(?:py|md|toml|svg))")
        if not (ROOT / name).exists()
    ]
    assert not missing


def test_every_policy_is_described():
    for registry in (THROTTLES, FEEDERS, ROUTERS, LOCAL_SCHEDULERS):
        assert [name for name in registry.offered if f"`{name}`" not in POLICIES] == []


def test_every_offered_system_is_described():
    listed = re.search(r"`--system ([^`]+)`", POLICIES).group(1).split(" | ")
    assert set(listed) == {"rpm-N" if name == "rpm-20" else name for name in SYSTEMS.offered}


def test_what_exists_only_to_be_compared_with_is_in_the_guide_of_the_simulator():
    guide = (ROOT / "docs" / "guide" / "simulate.md").read_text()
    section = guide.split("## Systems to compare with")[1].split("\n## ")[0]
    for registry in (SYSTEMS, FEEDERS, ROUTERS, LOCAL_SCHEDULERS):
        assert [n for n in registry if n not in registry.offered and f"`{n}`" not in section] == []


def test_the_described_parts_have_the_figures_of_the_ablation():
    """Each line of its table is one of the report, without the spread over the seeds."""
    report = (ROOT / "benchmarks/results/papers/ablation.md").read_text()
    measured = [re.sub(r" \([^)]*\)", "", line) for line in report.splitlines()]
    section = POLICIES[POLICIES.index("## Contribution of each part") :]
    rows = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 8
    assert [row for row in rows if row not in measured] == []
    missed = {
        line.split("**: ")[1].split(": something")[0] for line in measured if "not hold" in line
    }
    assert missed == {"routing by cache: D2LPM", "no bound of bypasses", "OIT off"}, (
        "the text below the table says which replacements make nothing worse"
    )


def test_functions_named_in_the_papers_table_exist():
    """docs/papers.md names functions; each must be in the file of its class."""
    text = (ROOT / "docs" / "papers.md").read_text()
    source = "\n".join(path.read_text() for path in (ROOT / "scheduling").rglob("*.py"))
    source += "\n".join(path.read_text() for path in (ROOT / "throttling").rglob("*.py"))
    names = re.findall(r"`(?:[A-Z]\w+)\.(\w+)(?:\(|`|\[)", text)
    assert len(names) > 15
    for name in names:
        assert re.search(rf"(def {name}\b|\b{name}\b *[:=]|self\.{name}\b)", source), name


def test_every_command_is_described():
    from fairserve.platform.server.cli import commands as app

    described = README + "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    commands = list(get_command(app()).commands)
    assert "serve" in commands
    for command in commands:
        assert f"fairserve {command}" in described, command


def test_every_admin_command_is_in_the_guide():
    from fairserve.platform.server.cli import COMMANDS

    for noun in ("tenant", "app", "key", "price", "user", "webhook"):
        assert "admin_cli" in COMMANDS[noun].module
        group = get_command(COMMANDS[noun].load())
        path = re.search(r"docs/guide/\w+\.md", group.help).group()
        assert f"({path})" in README
        guide = (ROOT / path).read_text()
        assert f"`fairserve {noun}`" in README, noun
        for name in group.commands:
            assert f"\nfairserve {noun} {name} " in guide or (noun, name) in SAME_AS, (noun, name)


def test_every_type_of_event_is_in_the_guide():
    from fairserve.platform.background.webhooks.event_types import TEST, TYPES

    guide = (ROOT / "docs" / "guide" / "webhooks.md").read_text()
    for name in (*TYPES, TEST):
        assert f"\n`{name}`: " in guide, name


def test_every_contract_limit_is_in_the_guide():
    from fairserve.platform.server.admin_cli.fields import CONTRACT
    from fairserve.platform.tenancy.quotas.schemas import ContractBody

    guide = (ROOT / "docs" / "guide" / "tenants.md").read_text()
    assert {name for name, *_ in CONTRACT} == ContractBody.model_fields.keys()
    for name in ContractBody.model_fields:
        assert f"\n| `{name}` | `--{name.replace('_', '-')}` |" in guide, name


def test_every_group_of_benchmarks_is_described():
    from fairserve.benchmarks.bench.main import app

    groups = get_command(app).commands
    guide = (ROOT / "docs" / "guide" / "bench.md").read_text()
    assert "interactions" in groups
    for group in groups:
        assert f"`fairserve bench {group}`" in guide, group
        assert f"\nfairserve bench {group} [" in guide, group


def test_every_figure_is_in_the_guide():
    from fairserve.benchmarks.bench import interactions

    guide = (ROOT / "docs" / "guide" / "bench.md").read_text()
    for part in interactions.PARTS:
        for figure in part.figures:
            assert f"| `{figure.name}` |" in guide, figure.name
