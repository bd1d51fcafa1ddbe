"""Test the configuration file: precedence, errors with their position, and its output."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fairserve.platform.server import cli
from fairserve.platform.server.configuration import checks
from fairserve.platform.server.configuration.checks import configured_fleet, problems_of
from fairserve.platform.server.configuration.flags import environment_names
from fairserve.platform.server.configuration.fleet_section import fleet_parser
from fairserve.platform.server.configuration.reload import READ_BY_JOBS, RELOADABLE, change_of
from fairserve.platform.server.configuration.sources import SettingsError, layers_of, settings_from
from fairserve.platform.server.settings import FIELDS, Settings

ROOT = Path(__file__).resolve().parents[4]
FLEET = """
fleet:
  workers:
    - {id: a, url: "http://a.example:8000"}
  aliases: {gpt: llama}
"""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for field in FIELDS:
        for name in environment_names(field):
            monkeypatch.delenv(name, raising=False)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a configuration file and returns its path as text."""

    def to_file(text):
        path = tmp_path / "fairserve.yaml"
        path.write_text(text)
        return str(path)

    return to_file


def problems(path):
    with pytest.raises(SettingsError) as caught:
        settings_from({"config": path})
    return [problem.removeprefix(path) for problem in caught.value.problems]


def test_flag_then_environment_then_file_then_default(write, monkeypatch):
    path = write("host: 10.0.0.1\nport: 1\nworkers: 3\ndatabase_url: sqlite:////x\n")
    monkeypatch.setenv("FAIRSERVE_CONFIG", path)
    monkeypatch.setenv("FAIRSERVE_PORT", "2")
    monkeypatch.setenv("fairserve_workers", "4")
    layers = layers_of({"workers": "5", "model": None})
    settings = layers.settings()
    assert (settings.server.host, settings.server.port) == ("10.0.0.1", 2)
    assert (settings.fleet.workers, settings.db.database_url) == (5, "sqlite:////x")
    sources = [layers.source(name) for name in ("workers", "port", "host", "model")]
    assert sources == ["flag", "environment", "file", "default"]
    monkeypatch.setenv("DATABASE_URL", "sqlite:////y")
    assert settings_from({}).db.database_url == "sqlite:////y"


def test_values_have_the_types_of_yaml(write):
    path = write(
        "worker_urls: [http://a, http://b]\nsystem_options: {levels: user}\n"
        "file_store_url: ''\nconsole: off\nwebhook_allowed_networks: [10.0.0.0/8]\n"
        f"secret_key: {'s' * 40}\n"
    )
    settings = settings_from({"config": path})
    assert settings.fleet.worker_urls == ("http://a", "http://b")
    assert settings.tuning.system_options == {"levels": "user"}
    assert (settings.serving.file_store_url, settings.console.console) == ("", "off")
    assert str(settings.background.webhook_allowed_networks[0]) == "10.0.0.0/8"
    assert settings.db.secret_key.get_secret_value() == "s" * 40
    assert settings_from({"config": write("")}).server.config is not None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("port: 1\nprot: 2", ":2: prot: there is no such setting; did you mean port?"),
        ("data-dir: /x", ":1: data-dir: there is no such setting; did you mean data_dir?"),
        ("flet: {}", ":1: flet: there is no such setting; did you mean fleet?"),
        ("\nport: 70000", ":2: port: Input should be less than or equal to 65535"),
        ("worker_urls:\n- http://a\n- 7", ":3: worker_urls: Input should be a valid string"),
        ("config: x", ":1: config: a configuration file cannot name another one"),
        ("port: 1\nport: 2", ":2: port is given twice, first in line 1"),
        ("port: [", ":1: not YAML: expected the node content, but found '<stream end>'"),
        ("host: a\nport: !!int x", ":2: not YAML: invalid literal for int() with base 10: 'x'"),
        ("- port", ":1: must be settings, each as `name: value`"),
        ("fleet_file: x\nfleet: {}", ":2: fleet: fleet_file names a fleet file, too"),
        ("secret_key: hunter2", ":1: secret_key: must have 32 to 256 characters"),
    ],
)
def test_a_problem_names_file_line_and_setting(write, text, problem):
    (found,) = problems(write(text))
    assert found.startswith(problem)
    assert "hunter2" not in found


def test_all_problems_are_reported(write):
    assert len(problems(write("prot: 1\nport: x\nworkers: -1"))) == 3


def test_a_missing_file_and_a_second_fleet_are_problems(write, tmp_path, monkeypatch):
    assert problems(str(tmp_path / "none.yaml")) == [": No such file or directory"]
    monkeypatch.setenv("FAIRSERVE_FLEET_FILE", "x.json")
    (found,) = problems(write(FLEET))
    assert found.startswith(":2: fleet: FAIRSERVE_FLEET_FILE names a fleet file, too")


def test_the_fleet_is_a_section(write):
    path = write("worker_urls: http://b\n" + FLEET)
    settings = settings_from({"config": path})
    part = configured_fleet(settings)
    assert [spec.worker_id for spec in part.workers] == ["w0", "a"]
    parse = fleet_parser(settings)
    assert parse(b"fleet:\n").workers == ()
    with pytest.raises(ValueError, match=r"line 4: workers.0.kid: unknown; allowed: id, url"):
        parse(b"fleet:\n  workers:\n  - url: http://a\n    kid: a\n")
    with pytest.raises(ValueError, match="the section fleet is missing"):
        parse(b"port: 1\n")


def run(capsys, *arguments):
    code = cli.main(["config", *arguments])
    out, err = capsys.readouterr()
    assert not err
    return code, out


def test_check_prints_each_problem(write, capsys):
    path = write("port: 1" + FLEET)
    text = f"the settings are valid ({path}: 1 settings, and the fleet)\n"
    assert run(capsys, "check", "--config", path) == (0, text)
    code, out = run(capsys, "check", "--config", write("prot: 1\nport: x"))
    assert (code, out.count("\n")) == (1, 2)
    code, out = run(
        capsys, "check", "--config", write(FLEET), "--worker-urls", "http://a.example:8000"
    )
    assert code == 1
    assert "worker 'a' has the URL of worker 'w0'" in out
    code, out = run(capsys, "check", "--system", "nothing")
    assert code == 1
    assert out.startswith("unknown system 'nothing'")


def test_check_prints_all_that_a_start_rejects_at_once(write, capsys, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    monkeypatch.setenv("FAIRSERVE_DATABASE_URL", "mysql://u:hunter2@h/d")
    text = "port: x\nrole: api\ntracing: calls\nfile_store_url: nowhere://u:hunter2@b\n"
    path = write(text + "system: none\nfleet: {workers: [{id: a}]}\n")
    code, out = run(capsys, "check", "--config", path)
    wrong = ("port: ", "role is api", "OTEL_TRACES_EXPORTER", "file_store_url", "database_url: ")
    assert (code, out.count("\n")) == (1, 8)
    for each in (
        *wrong,
        "FAIRSERVE_SECRET_KEY",
        "redis_url",
        "unknown system",
        "fairserve.yaml: line 6: ",
    ):
        assert each in out
    assert "hunter2" not in out
    assert cli.main(["serve", "--config", path]) == 2
    err = capsys.readouterr().err
    assert all(problem in err for problem in out.splitlines() if "fleet" not in problem)


def test_check_prints_urls_that_cannot_be_used_and_every_wrong_worker(write, capsys):
    text = "redis_url: http://u:hunter2@r\nfile_store_url: ftp://u:hunter2@127.0.0.1:1\n"
    path = write(text + "fleet:\n  workers:\n" + "    - {id: a}\n" * 5)
    code, out = run(capsys, "check", "--config", path)
    assert code == 1
    assert "redis_url must have the form redis://" in out
    assert "file_store_url with ftp:// cannot be opened" in out
    assert all(f"line {line}: workers.{line - 5}.url" in out for line in range(5, 10))
    assert "hunter2" not in out


REJECTED = {
    # name of the problem: lines of the file, and what the line of the problem begins with
    "range": ("drain_timeout_s: -1", "drain_timeout_s: Input should be greater"),
    "name": ("prot: 1", "prot: there is no such setting"),
    "removed": ("journal_segment_bytes: 9", "journal_segment_bytes was removed: "),
    "network": ("webhook_allowed_networks: [x]", "webhook_allowed_networks: "),
    "contradiction": ("oidc_issuer: https://i.example", "oidc_issuer needs oidc_client_id"),
    "system": ("system: none", "unknown system 'none'"),
    "exporter": ("tracing: calls", "OTEL_TRACES_EXPORTER"),
    "files": ("file_store_url: nowhere://b", "file_store_url"),
    "role": ("role: control", "role is control: redis_url must name"),
    "database": ("database_url: mysql://h/d", "database_url: "),
    "key": ("database_url: postgresql://h/d", "FAIRSERVE_SECRET_KEY"),
    "redis": ("redis_url: http://r", "redis_url must have the form redis://"),
    "folder": (
        "data_dir: FILE/below",
        "the data folder FILE/below cannot be created: FILE is not a folder",
    ),
    "ports": ("port: 9000\nmetrics_port: 9000", "metrics_port is 9000, as port is"),
    "model": ("model: ./none", "model: model './none' cannot be loaded: it is neither a folder"),
    "fleet": ("fleet: {workers: [{id: a}]}", "workers.0.url"),
    "fleet file": ("fleet_file: FILE.json", "FILE.json"),
    "worker URL": ("worker_urls: [ftp://h]", "worker_urls: a worker URL must start with http://"),
}
SAME = (
    *(("database", "key"), ("fleet", "fleet file"), ("fleet", "model"), ("fleet file", "model")),
    *(("model", "role"), ("redis", "role")),
)
"""Pairs that exclude each other: two problems of one setting, a model without embedded workers."""


@pytest.mark.parametrize("model", ["", "demo"])
def test_check_names_torch_if_embedded_workers_would_need_it(write, capsys, monkeypatch, model):
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    code, out = run(capsys, "check", "--model", model)
    assert (code, "workers is 2: embedded workers need torch: pip install" in out) == (1, True), out
    for others in (("--workers", "0"), ("--config", write(FLEET))):
        assert run(capsys, "check", "--model", model, *others)[0] == 0


def write_rejected(write, names):
    """Write a file with these problems; return its path, and the beginnings of their lines."""
    file = Path(write("")).with_name("a-file")
    file.touch()
    lines = [REJECTED[name][0].replace("FILE", str(file)) for name in names]
    begins = [REJECTED[name][1].replace("FILE", str(file)) for name in names]
    return write("\n".join(lines)), begins


@pytest.mark.parametrize("name", REJECTED)
def test_check_rejects_what_serve_rejects(write, capsys, monkeypatch, name):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    path, (begin,) = write_rejected(write, [name])
    code, out = run(capsys, "check", "--config", path)
    assert (code, begin in out) == (1, True), out
    if name != "model":  # which an embedded worker rejects: tests/integration/test_start.py
        assert cli.main(["serve", "--config", path]) in (1, 2)
        assert begin in capsys.readouterr().err


@given(st.sets(st.sampled_from(sorted(REJECTED)), min_size=2))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_check_prints_any_problems_at_once(write, names):
    assume(not any(names.issuperset(pair) for pair in SAME))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
        path, begins = write_rejected(write, sorted(names))
        found = problems_of(layers_of({"config": path}))
    missing = [each for each in begins if not any(each in problem for problem in found)]
    assert not missing, found


SECRET_TEXT = f"""
secret_key: {"hunter2" * 6}
database_url: postgresql://u:hunter2@h/d
redis_url: redis://:hunter2@h/0
worker_urls: ["http://u:hunter2@w:1"]
system_options: {{hold_s: 9}}
"""


def test_show_names_sources_and_masks_secrets(write, capsys, monkeypatch):
    path = write(SECRET_TEXT + FLEET)
    monkeypatch.setenv("FAIRSERVE_ADMIN_KEY", "hunter2" * 6)
    _, out = run(capsys, "show", "--config", path, "--port", "1")
    assert "hunter2" not in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert rows["port"] == ["1", "flag"]
    assert rows["database_url"] == ["postgresql://u:***@h/d", f"{path}:3"]
    assert rows["admin_key"] == ["***", "environment"]
    assert rows["fleet"][-1] == f"{path}:8"
    assert set(FIELDS) <= rows.keys()


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_shown_yaml_and_json_are_configuration_files(write, capsys, form):
    path = write(SECRET_TEXT + FLEET)
    _, out = run(capsys, "show", "--config", path, "--port", "1", "--format", form)
    assert "hunter2" not in out
    if form == "json":
        assert json.loads(out)["port"] == 1
    before = settings_from({"config": path, "port": "1"})
    after = settings_from({"config": write(out)})
    hidden = {"secret_key", "database_url", "redis_url", "worker_urls"}
    change = change_of(before, after)
    assert {*change.applied, *change.restart} == hidden
    assert configured_fleet(after).workers == configured_fleet(before).workers[1:]


def test_a_change_keeps_what_needs_a_restart():
    change = change_of(Settings(), Settings(port=1, log_level="debug"))
    assert (change.applied, change.restart) == (("log_level",), ("port",))
    assert (change.settings.server.port, change.settings.server.log_level) == (8000, "debug")
    assert READ_BY_JOBS < RELOADABLE < set(FIELDS)


def test_the_example_for_production_is_valid(write, capsys, monkeypatch):
    guide = (ROOT / "docs/guide/production.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    monkeypatch.setenv("FAIRSERVE_SECRET_KEY", "k" * 40)
    path = write(example)
    code, out = run(capsys, "check", "--config", path)
    assert code == 0, out
    table = guide.partition("| setting |")[2]
    assert {*layers_of({"config": path}).file.settings} <= {*re.findall(r"`(\w+)`", table)}


def test_the_example_of_the_guide_is_valid(write):
    guide = (ROOT / "docs/guide/configuration.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    settings = settings_from({"config": write(example)})
    assert [spec.worker_id for spec in configured_fleet(settings).workers] == ["node-1", "node-2"]
