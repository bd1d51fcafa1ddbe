"""Test which changes of code change the fingerprint of a report, and which do not."""

import pytest

from fairserve.benchmarks.evidence.fingerprint import Fingerprints, code_hash
from fairserve.benchmarks.evidence.reports import Evidence

PACKAGE = {
    "__init__.py": "",
    "platform/study.py": (
        '"""Study."""\nfrom fairserve.scheduling.order import first\n'
        'from fairserve.benchmarks.evidence.marks import X\nN = 3\n"""Runs."""\n'
    ),
    "platform/other.py": "X = 1\n",
    "benchmarks/evidence/marks.py": "from fairserve.platform.other import X\n",
    "scheduling/__init__.py": "",
    "scheduling/order.py": (
        "def first(calls):\n"
        '    """Return the first call."""\n'
        "    import fairserve.scheduling.late\n"
        "    return calls[0] if len(calls) > 1 else None  # why\n"
    ),
    "scheduling/late.py": "LATE = {**{}, 'a': None}\n",
}
STUDY = "platform/study.py"
ORDER = "scheduling/order.py"
REPORT = Evidence("study", "fairserve study --seeds 5", "study.md", ("fairserve.platform.study",))


@pytest.fixture
def package(tmp_path):
    root = tmp_path / "checkout" / "src" / "fairserve"
    for path, text in PACKAGE.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def rewrite(package, path, old, new):
    text = (package / path).read_text()
    assert old in text
    (package / path).write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (STUDY, '"""Study."""', '"""Another sentence."""'),
        (STUDY, '"""Runs."""', ""),
        (ORDER, '"""Return the first call."""', '"""Return one."""'),
        (ORDER, "  # why", "  # another comment"),
        (ORDER, "calls[0] if len(calls) > 1", "calls[ 0 ] if len(calls)>1"),
        ("platform/other.py", "1", "2"),
        ("benchmarks/evidence/marks.py", "other", "study"),
    ],
)  # fmt: skip
def test_docstrings_comments_layout_and_other_modules_do_not_count(package, path, old, new):
    before = Fingerprints(package).of(REPORT)
    rewrite(package, path, old, new)
    assert Fingerprints(package).of(REPORT) == before


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (STUDY, "N = 3", "N = 4"),
        (STUDY, "N = 3", "N = '3'"),
        (ORDER, "> 1", ">= 1"),
        (ORDER, "else None", "else False"),
        (ORDER, "(calls)", "(runs)"),
        ("scheduling/late.py", "'a': None", "'a': 0"),
        ("scheduling/late.py", "**{}, 'a': None", "'a': None, **{}"),
        ("__init__.py", "", "V = 1"),
    ],
)
def test_a_literal_an_operator_or_a_name_in_the_closure_counts(package, path, old, new):
    before = Fingerprints(package).of(REPORT)
    rewrite(package, path, old, new)
    assert Fingerprints(package).of(REPORT) != before


def test_a_module_added_to_the_closure_counts(package):
    before = Fingerprints(package).of(REPORT)
    rewrite(package, "scheduling/late.py", "LATE", "import fairserve.platform.other\nLATE")
    after = Fingerprints(package).of(REPORT)
    assert after != before
    rewrite(package, "platform/other.py", "1", "2")
    assert Fingerprints(package).of(REPORT) not in (after, before)


def test_a_new_file_name_counts(package):
    before = Fingerprints(package).of(REPORT)
    (package / "scheduling/late.py").rename(package / "scheduling/later.py")
    rewrite(package, ORDER, "scheduling.late", "scheduling.later")
    assert Fingerprints(package).of(REPORT) != before


def test_the_command_is_part_of_the_fingerprint(package):
    fingerprints = Fingerprints(package)
    assert fingerprints.of(REPORT) == fingerprints.of(REPORT, "fairserve study --seeds 5")
    assert fingerprints.of(REPORT) != fingerprints.of(REPORT, "fairserve study --seeds 1")


def test_an_installed_package_has_the_fingerprint_of_the_checkout(package, tmp_path):
    """The parts of the package are links to folders of the checkout, or copies."""
    before = Fingerprints(package).of(REPORT)
    for part in ("platform", "scheduling"):
        (package / part).rename(tmp_path / "checkout" / part)
        (package / part).symlink_to(f"../../{part}")
    assert Fingerprints(package).of(REPORT) == before


def test_a_script_depends_on_its_imports_from_test_support(package, tmp_path):
    checkout = tmp_path / "checkout"
    (checkout / "tests/support").mkdir(parents=True)
    (checkout / "tests/support/world.py").write_text("A = 1\n")
    (checkout / "speed.py").write_text("import world\n")
    script = Evidence("speed", "python speed.py", "speed.json", ("speed.py",))
    before = Fingerprints(package).of(script)
    (checkout / "tests/support/world.py").write_text("A = 2\n")
    assert Fingerprints(package).of(script) != before


@pytest.mark.parametrize("module", ["fairserve.platform.studies", "fairserve.study.x", "gone.py"])
def test_a_missing_module_is_an_error(package, module):
    report = Evidence("study", "fairserve study", "study.md", (module,))
    with pytest.raises(ValueError, match=f"study: there is no module {module}"):
        Fingerprints(package).of(report)


def test_the_hash_of_code_is_equal_in_every_python_version():
    """The expected hash is a literal: fields of only some versions are empty here, and omitted."""
    assert (
        code_hash(b"def f(a, /, *b, c=None, **d) -> int:\n    return f'{a!r:>{b}}'\n")
        == "23ad38eabc06"
    )
