"""Test the settings: environment and flags, bounds, secrets, and the guide."""

import json
import re
import stat
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError
from typer.main import get_command

from fairserve.platform.background import settings as background_settings
from fairserve.platform.base.option_pairs import parse_options
from fairserve.platform.base.removed_names import REMOVED_SETTINGS
from fairserve.platform.control.options import control_options
from fairserve.platform.db.key_hash import KeyHasher, key_hasher
from fairserve.platform.db.settings import DbSettings
from fairserve.platform.server import cli
from fairserve.platform.server.commands.serve import app
from fairserve.platform.server.configuration.flags import (
    environment_names,
    flag,
    guide,
)
from fairserve.platform.server.configuration.sources import settings_from
from fairserve.platform.server.configuration.topics import TOPICS, WHEN
from fairserve.platform.server.settings import FIELDS as ALL
from fairserve.platform.server.settings import ROOM_OF, ROOMS, Settings
from fairserve.platform.serving.options import file_options
from fairserve.platform.tenancy.system.settings import TuningSettings

ROOT = Path(__file__).resolve().parents[4]
SECRET = "s3cret-" + "x" * 40
FIELDS = sorted(ALL)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for field in FIELDS:
        for name in environment_names(field):
            monkeypatch.delenv(name, raising=False)


def read(settings, field):
    return getattr(getattr(settings, ROOM_OF[field]), field)


def parse(*flags):
    given = get_command(app).make_context("serve", list(flags)).params
    return settings_from({name: value for name, value in given.items() if value != ()})


def help_text():
    command = get_command(app)
    return command.get_help(command.context_class(command))


def test_every_setting_is_described_and_documented():
    text = (ROOT / "docs/guide/settings.md").read_text()
    assert text == guide(), (
        "run: python -m fairserve.platform.server.configuration.flags > docs/guide/settings.md"
    )
    text = text.partition("## Parameters of the system")[0]
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    for field in FIELDS:
        assert ALL[field].description, field
        assert "[" not in ALL[field].description, "Rich would take it for a style"
        assert all(f"`{name}`" in rows[field] for name in environment_names(field)), field
        assert flag(field) is None or f"`{flag(field)}`" in rows[field], field


def test_every_setting_has_one_topic_and_a_reason_to_change_it():
    assert sorted(name for names in TOPICS.values() for name in names) == FIELDS
    assert all(WHEN[name].endswith(".") for name in FIELDS)


def test_an_operator_sees_at_most_seventy_settings():
    assert len(FIELDS) <= 70


def test_the_help_begins_with_the_most_used_flags():
    text = help_text()
    assert next(iter(TOPICS)) == "Most used"
    begins = [text.index(f"\n{topic}:\n") for topic in TOPICS]
    assert begins == sorted(begins)
    first = re.findall(r"\n  (--[\w-]+)", text[: begins[1]])
    assert first[:6] == ["--host", "--port", "--data-dir", "--database-url", "--model", "--workers"]


def test_help_names_every_flag_default_and_variable():
    text = " ".join(help_text().split())
    for field in FIELDS:
        if flag(field) is None:
            assert field.replace("_", "-") not in text
        else:
            assert flag(field) in text
            assert environment_names(field)[0] in re.sub(r"(?<=_) (?=[A-Z])", "", text)
    assert "Default: 8000." in text


def test_a_flag_overrides_the_environment(monkeypatch):
    monkeypatch.setenv("FAIRSERVE_PORT", "9001")
    monkeypatch.setenv("FAIRSERVE_WORKERS", "5")
    settings = parse("--port", "9002", "--no-trace-recording")
    found = (settings.server.port, settings.fleet.workers, settings.reporting.trace_recording)
    assert found == (9002, 5, False)


@pytest.mark.parametrize("field", ["database_url", "redis_url"])
def test_urls_may_have_the_prefix_or_not(monkeypatch, field):
    plain = field.upper()
    monkeypatch.setenv(plain, "x://plain")
    assert read(Settings(), field) == "x://plain"
    monkeypatch.setenv(f"FAIRSERVE_{plain}", "x://prefixed")
    assert read(Settings(), field) == "x://prefixed"
    assert read(parse(f"--{field.replace('_', '-')}", "x://flag"), field) == "x://flag"


def test_lists_and_options_are_read_from_text(monkeypatch):
    monkeypatch.setenv("FAIRSERVE_WORKER_URLS", "http://a:1/, https://b:2")
    monkeypatch.setenv("FAIRSERVE_SYSTEM_OPTIONS", "high_watermark=4,router.quantum=null")
    settings = Settings()
    assert settings.fleet.worker_urls == ("http://a:1", "https://b:2")
    assert settings.tuning.system_options == {"high_watermark": 4, "router.quantum": None}
    settings = parse("--set", "high_watermark=3.5", "--set", "levels=user")
    assert settings.tuning.system_options == {"high_watermark": 3.5, "levels": "user"}
    monkeypatch.setenv("FAIRSERVE_SYSTEM_OPTIONS", json.dumps({"hold_s": 3}))
    assert Settings().tuning.system_options == {"hold_s": 3}


@pytest.mark.parametrize(
    ("value", "word"), [("on", "on"), ("true", "on"), (True, "on"), ("off", "off"), (False, "off")]
)
def test_switches_may_be_truth_values(value, word):
    assert Settings(console=value).console.console == word
    assert Settings(tracing=False).monitoring.tracing == "off"
    with pytest.raises(ValidationError, match="tracing"):
        Settings(tracing=True)


@pytest.mark.parametrize("pairs", [["a"], ["=1"], ["a=1", "a=2"]])
def test_invalid_options_are_rejected(pairs):
    with pytest.raises(ValueError, match="option"):
        parse_options(pairs)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"port": 70_000}, "port"),
        ({"system_options": "{"}, "system_options"),
        ({"oidc_issuer": "https://login.example"}, "oidc_issuer needs oidc_client_id"),
        ({"worker_urls": "localhost:1"}, "worker_urls: a worker URL must start with"),
        ({"worker_urls": "http://a,http://a"}, "worker_urls: a worker URL is given twice"),
        ({"secret_key": "short"}, "secret_key: must have 32 to 256 characters"),
        ({"secret_key_previous": SECRET}, "secret_key_previous needs secret_key"),
        ({"journal_max_bytes": 4096}, "journal_max_bytes: Input should be greater"),
        ({"keepalive_s": "soon"}, "keepalive_s"),
    ],
)
def test_an_error_names_the_setting_without_its_value(wrong, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        settings_from(wrong)
    assert "\n" not in str(caught.value)
    assert "short" not in str(caught.value)


def test_an_unknown_name_is_rejected():
    with pytest.raises(ValidationError, match="prot"):
        Settings(prot=8000)
    with pytest.raises(ValidationError, match="port"):
        TuningSettings(port=8000)
    with pytest.raises(KeyError, match="prot"):
        Settings().changed(prot=8000)


def test_no_two_rooms_have_a_setting_of_the_same_name():
    assert sum(len(part.model_fields) for part in ROOMS.values()) == len(FIELDS)


@pytest.mark.parametrize("name", REMOVED_SETTINGS)
def test_a_removed_setting_is_refused_with_what_replaces_it(name, monkeypatch, tmp_path, capsys):
    assert name not in ALL
    instead = REMOVED_SETTINGS[name]
    monkeypatch.setenv(f"FAIRSERVE_{name.upper()}", "1")
    with pytest.raises(ValueError, match=f"FAIRSERVE_{name.upper()} was removed: ") as caught:
        settings_from({})
    assert caught.value.problems == [f"FAIRSERVE_{name.upper()} was removed: {instead}"]
    monkeypatch.delenv(f"FAIRSERVE_{name.upper()}")
    file = tmp_path / "config.yaml"
    file.write_text(f"{name}: 1\n")
    with pytest.raises(ValueError, match=f"{file}:1: {name} was removed: ") as caught:
        settings_from({"config": str(file)})
    assert caught.value.problems == [f"{file}:1: {name} was removed: {instead}"]
    flag = f"--{name.replace('_', '-')}"
    for given in (flag, flag.replace("--", "--no-")):
        assert cli.main(["serve", given, "1"]) == 2
        error = f"fairserve serve: {given} was removed: {instead}\n"
        assert capsys.readouterr().err == error


def test_a_room_reads_its_own_variables(monkeypatch):
    monkeypatch.setenv("FAIRSERVE_SYSTEM", "fcfs")
    monkeypatch.setenv("FAIRSERVE_PORT", "none of its own")
    assert TuningSettings().system == "fcfs"


def test_all_invalid_settings_are_reported_together():
    wrong = {"oidc_issuer": "https://login.example", "secret_key": "short", "port": "x"}
    with pytest.raises(ValueError, match=r"port: .*; secret_key: .*; oidc_issuer needs") as caught:
        settings_from(wrong)
    assert "short" not in str(caught.value)


def test_a_changed_copy_keeps_the_original(monkeypatch):
    settings = Settings(port=1, system="fcfs")
    monkeypatch.setenv("FAIRSERVE_PORT", "9001")
    changed = settings.changed(port=0, console="off")
    assert (changed.server.port, changed.console.console) == (0, "off")
    assert (settings.server.port, settings.console.console) == (1, "on")
    assert changed.tuning == settings.tuning


def test_no_secret_is_shown():
    settings = Settings(
        secret_key=SECRET,
        secret_key_previous=SECRET,
        admin_key=SECRET,
        database_url="postgresql://u:s3cret-x@h/d",
        redis_url="redis://:s3cret-x@h",
    )
    hasher = key_hasher(settings.db)
    assert SECRET not in settings.model_dump_json()
    assert "s3cret" not in repr(settings) + str(settings) + repr(hasher)
    assert isinstance(settings.db.admin_key, SecretStr)


def test_an_empty_secret_is_none():
    assert Settings(secret_key="", admin_key="").db.secret_key is None


def test_the_secret_is_generated_once_and_private(tmp_path):
    settings = Settings(data_dir=tmp_path / "data")
    first, second = key_hasher(settings.db), key_hasher(settings.db)
    assert first.hash("key") == second.hash("key")
    path = tmp_path / "data" / "secret.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["secret.key"]
    other = key_hasher(DbSettings(data_dir=tmp_path / "other"))
    assert other.hash("key") != first.hash("key")
    path.write_text("short\n")
    with pytest.raises(ValueError, match="at least 32 characters"):
        key_hasher(settings.db)


def test_a_shared_database_needs_a_shared_secret(tmp_path):
    url = "postgresql://h/d"
    with pytest.raises(ValueError, match="FAIRSERVE_SECRET_KEY must be set"):
        key_hasher(DbSettings(data_dir=tmp_path, database_url=url))
    hasher = key_hasher(DbSettings(data_dir=tmp_path, database_url=url, secret_key=SECRET))
    assert hasher.hash("k") == KeyHasher(SECRET.encode()).hash("k")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "celery"),
    [
        ({}, False),
        ({"redis_url": "redis://h/0"}, True),
    ],
)
def test_the_redis_url_determines_the_process_of_jobs(given, celery):
    assert Settings(**given).background.jobs_on_celery is celery


def test_celery_must_be_installed(monkeypatch):
    monkeypatch.setattr(background_settings, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"fairserve\[redis\]"):
        Settings(redis_url="redis://h/0")


@pytest.mark.parametrize(
    ("enforcement", "contracts", "cut_runs"),
    [("new_runs", True, False), ("every_call", True, True), ("off", False, False)],
)
def test_bounds_of_control_follow_from_few_settings(enforcement, contracts, cut_runs):
    settings = Settings(
        max_tenant_share=0.5, interaction_idle_timeout_s=10, quota_enforcement=enforcement
    )
    found = control_options(settings.control, settings.tenancy)
    assert (found.tenant_share, found.user_share, found.reopen_grace_s) == (0.5, 0.125, 20)
    assert (found.admission.contracts, found.admission.rates_cut_runs) == (contracts, cut_runs)


def test_a_tenant_may_have_a_sixteenth_of_the_space_for_files():
    found = file_options(Settings(file_max_bytes_in_all=1600, content_retention_days=2).serving)
    assert (found.max_bytes_in_all, found.max_bytes_per_tenant) == (1600, 100)
    assert found.retention == timedelta(days=2)
