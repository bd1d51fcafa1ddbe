"""requirements.lock has the versions of constraints.txt, with their hashes; `make lock` writes it."""

import re
from pathlib import Path

from lock import without_builds_of_torch

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^ ;\\\n]+)", re.MULTILINE)


def versions(text):
    return {
        name.lower().replace("_", "-").replace(".", "-"): version
        for name, version in VERSION.findall(text)
    }


def test_the_lock_has_the_versions_of_the_constraints():
    lock = (ROOT / "requirements.lock").read_text()
    wanted, locked = versions((ROOT / "constraints.txt").read_text()), versions(lock)
    both = wanted.keys() & locked.keys()  # the lock also has what other platforms need
    assert len(both) > 200
    assert {name: wanted[name] for name in both} == {name: locked[name] for name in both}
    entries = re.split(r"\n(?=\S)", lock.strip())
    assert [each for each in entries if "--hash=sha256:" not in each] == ["torch==2.13.0"]


def test_torch_is_locked_by_its_version_only():
    lines = [
        "torch==2.1 ; sys_platform == 'win32' \\\n",
        "    --hash=sha256:1\n",
        "torch==2.1+cpu ; sys_platform != 'win32' \\\n",
        "    --hash=sha256:2\n",
        "tqdm==1 \\\n",
        "    --hash=sha256:3\n",
    ]
    found = list(without_builds_of_torch(lines))
    assert found == ["torch==2.1\n", "tqdm==1 \\\n", "    --hash=sha256:3\n"]
