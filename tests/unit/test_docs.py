"""Links in the documents resolve, and every policy and command is described."""

import re
from pathlib import Path

from fairserve.scheduling.registry import FEEDERS, LOCAL_SCHEDULERS, ROUTERS, SYSTEMS
from fairserve.throttling.registry import THROTTLES

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = (ROOT / "README.md").read_text()
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


def test_named_files_exist():
    """Names are paths in backticks that look like files of this repository."""
    missing = [
        f"{document.relative_to(ROOT)}: {name}"
        for document, name in found_in_documents(r"`([a-z_]+/[\w/.-]+\.(?:py|md|toml|svg))")
        if not (ROOT / name).exists()
    ]
    assert not missing


def test_every_policy_is_in_the_readme():
    names = [*THROTTLES, *FEEDERS, *ROUTERS, *LOCAL_SCHEDULERS]
    assert [name for name in names if f"`{name}`" not in README] == []


def test_every_system_is_in_the_readme():
    listed = re.search(r"`--system ([^`]+)`", README).group(1).split(" | ")
    served = {name for name, system in SYSTEMS.items() if not system.simulated_only}
    assert set(listed) == {"rpm-N" if name.startswith("rpm-") else name for name in served}


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
    from fairserve.platform.server.cli import parser

    actions = [a for a in parser()._actions if a.choices and a.dest == "command"]
    described = README + "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    commands = list(actions[0].choices)
    assert "serve" in commands
    for command in commands:
        assert f"fairserve {command}" in described, command


def test_every_admin_command_is_in_the_guide():
    from fairserve.platform.server.admin_cli.main import NOUNS, guide_of, parser

    for noun in NOUNS:
        assert f"({guide_of(noun)})" in README
        guide = (ROOT / guide_of(noun)).read_text()
        assert f"| `fairserve {noun}` |" in README, noun
        (actions,) = [action for action in parser(noun)._actions if action.choices]
        for name in actions.choices:
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
    from fairserve.benchmarks.bench.main import GROUPS

    guide = (ROOT / "docs" / "guide" / "bench.md").read_text()
    assert "interactions" in GROUPS
    for group in GROUPS:
        assert f"`fairserve bench {group}`" in README, group
        assert f"`fairserve bench {group}`" in guide, group
        assert f"\nfairserve bench {group} [" in guide, group


def test_every_figure_is_in_the_guide():
    from fairserve.benchmarks.bench import interactions

    guide = (ROOT / "docs" / "guide" / "bench.md").read_text()
    for part in interactions.PARTS:
        for figure in part.figures:
            assert f"| `{figure.name}` |" in guide, figure.name
