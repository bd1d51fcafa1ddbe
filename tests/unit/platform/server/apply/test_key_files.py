"""New keys are written once, each into a file of its own that only its owner reads."""

import re
import stat
from pathlib import Path

import pytest
import yaml

from fairserve.platform.base.command_line import CommandError
from fairserve.platform.server.apply.key_files import KeyFiles
from fairserve.platform.server.apply.plan import Key

TENANT = Key("tenant", ("Suche & Co",))
APP = Key("app", ("Suche & Co", "chat"))
HOOK = Key("webhook", ("Suche & Co", "https://a.org:8443/hook?token=hidden"))


def test_a_secret_is_written_once(tmp_path):
    files = KeyFiles(tmp_path / "new" / "keys", kubernetes=False)
    files.prepare([TENANT, APP, HOOK])
    assert stat.S_IMODE((tmp_path / "new" / "keys").stat().st_mode) == 0o700
    paths = [files.store(key, f"secret of {key.kind}") for key in (TENANT, APP, HOOK)]
    assert [(path.name, path.read_text()) for path in paths] == [
        ("suche-co.key", "secret of tenant\n"),
        ("suche-co.chat.key", "secret of app\n"),
        ("suche-co.webhook.a-org-hook.secret", "secret of webhook\n"),
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    with pytest.raises(CommandError, match=r"suche-co.chat.key exists; move it away"):
        files.prepare([APP])
    with pytest.raises(CommandError, match="make another one: fairserve key create"):
        files.store(APP, "another")
    assert paths[1].read_text() == "secret of app\n"


def test_two_objects_have_no_common_file(tmp_path):
    with pytest.raises(CommandError, match=r"app A/b and app A/B would both have the file"):
        KeyFiles(tmp_path, kubernetes=False).prepare(
            [Key("app", ("A", "b")), Key("app", ("A", "B"))]
        )
    with pytest.raises(CommandError, match=r"rename one$"):
        KeyFiles(tmp_path, kubernetes=True).prepare([Key("tenant", ("A",)), Key("tenant", ("a",))])
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="cannot be made"):
        KeyFiles(tmp_path / "file" / "keys", kubernetes=False).prepare([])


def test_a_folder_is_written_to_before_a_key_is_made(tmp_path):
    """Permissions do not show a full disk, nor that a user may write to no file of ``/proc``."""
    files = KeyFiles(Path("/proc"), kubernetes=False)
    with pytest.raises(CommandError, match=r"^--keys /proc cannot be written to: "):
        files.prepare([TENANT])
    KeyFiles(tmp_path, kubernetes=False).prepare([TENANT])
    assert list(tmp_path.iterdir()) == []


def test_names_of_other_letters_have_files_of_their_own(tmp_path):
    files = KeyFiles(tmp_path, kubernetes=True)
    keys = [Key("tenant", (name,)) for name in ("研究", "支持", "Zoé", "Łódź", "2 & 3")]
    files.prepare(keys)
    names = [files.store(key, "k").name for key in keys]
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?\.yaml", name) for name in names)
    assert names[2:] == ["zoe.yaml", "odz-bc8847fc.yaml", "2-3.yaml"]


def test_a_manifest_is_that_of_one_secret(tmp_path):
    files = KeyFiles(tmp_path, kubernetes=True)
    manifest = yaml.safe_load(files.store(HOOK, "whsec_x").read_text())
    assert manifest == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "fairserve-suche-co.webhook.a-org-hook"},
        "type": "Opaque",
        "stringData": {"signing-secret": "whsec_x"},
    }
