"""The file of ``fairserve apply`` is checked as a whole, and each problem has its line and its field."""

import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import pytest

from fairserve.platform.server.apply.declaration import DeclarationError, read_declaration
from fairserve.platform.server.apply.plan import Key, Kind, objects_of

FILE = Path("tenants.yaml")
GUIDE = Path(__file__).parents[5] / "docs" / "guide" / "apply.md"
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def read(text):
    return read_declaration(FILE, text.encode())


def test_the_example_of_the_guide_is_valid():
    text = re.search(r"```yaml\n(# tenants.*?)```", GUIDE.read_text(), re.DOTALL).group(1)
    objects = objects_of(read(text), NOW)
    assert {key.kind for key in objects} == set(get_args(Kind))


def test_the_five_teams_of_the_guide_are_valid():
    text = re.search(
        r"```yaml\n(.*?)```", GUIDE.with_name("teams.md").read_text(), re.DOTALL
    ).group(1)
    assert Counter(key.kind for key in objects_of(read(text), NOW)) == {
        "price": 1,
        "tenant": 5,
        "app": 5,
    }


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", []),
        ("tenants:\n  A:\n", []),
        ("tenants: {A: {weight: 1}}\ntenants: {}", ["2: tenants is given twice, first in line 1"]),
        ("tenants: {A: {", ["1: not YAML: "]),
        (
            "prices:\n- {model: m, input: 1, output: 2,\n   valid_from: 2030-06-31T00:00:00Z}",
            ["3: not YAML: day is out of range for month"],
        ),
        ("- tenants", ["1: must be a mapping; its fields: managed_by, throttling, prices, "]),
        ("tenants: {A: x}", ["1: tenants.A: must be a mapping; its fields: weight, levels, "]),
        (
            "tenants:\n  A:\n    weight: 200\n    contract:\n      rpm_limit: 0\n",
            [
                "3: tenants.A.weight: Input should be less than or equal to 100",
                "5: tenants.A.contract.rpm_limit: Input should be greater than or equal to 1",
            ],
        ),
        (
            "tenants:\n  A:\n    contract:\n      max_budget: 5\n",
            ["3: tenants.A.contract.budget_duration: a budget needs a budget_duration"],
        ),
        ("tenants: {A: {apps: {b: {}}}}", ["1: tenants.A.apps.b.profile: Field required"]),
        (
            "tenants: {A: {keys: [x]}}",
            [
                "1: tenants.A.keys: unknown field; allowed: weight, levels, contract, apps, users,"
                " webhooks"
            ],
        ),
        (
            "tenants: {A: {apps: {b: {profile: {stages: [{input: 1}]}, contract: {rpm: 1}}}}}",
            [
                "1: tenants.A.apps.b.profile.stages[0].input_tokens: Field required",
                "1: tenants.A.apps.b.profile.stages[0].output_tokens: Field required",
                "1: tenants.A.apps.b.profile.stages[0].input: unknown field; allowed: input_tokens, ",
                "1: tenants.A.apps.b.contract.rpm: unknown field; allowed: rpm_limit, ",
            ],
        ),
        (
            "{tenent: {}, throttling: {sistem: s}, workers: {a: {ulr: u}}}",
            [
                "1: throttling.system: Field required",
                "1: throttling.sistem: unknown field; allowed: system, parameters",
                "1: workers.a.url: Field required",
                "1: workers.a.ulr: unknown field; allowed: url, ",
                "1: tenent: unknown field; allowed: managed_by, ",
            ],
        ),
        ('tenants: {"a\\nb": {}}', [r"1: tenants.'a\nb': String should match pattern"]),
        ("tenants: {1: {}}", ["1: tenants[1]: Input should be a valid string"]),
        ("tenants: {A: {}, 'A ': {}}", ["1: tenants: two of these names are the same"]),
        (
            "prices:\n- {model: m, input: 1, output: 1}\n- {model: m, input: 2, output: 1}",
            ["3: prices[1]: 'm' has two prices without valid_from; allowed: one"],
        ),
        (
            "workers:\n  a: {url: 'http://h'}\n  b: {url: 'http://H/v1'}",
            ["3: workers.b: url: worker 'a' has the same"],
        ),
        (
            "aliases: {m: n}\nworkers:\n  a: {url: 'http://h', model: m}",
            ["3: workers.a: model: 'm' is an alias"],
        ),
        ("workers: {a/b: {url: 'http://h'}}", ["1: workers.a/b: String should match pattern"]),
        ("workers: {a: {url: 'http://h', api_key_env: X}}", ["1: workers.a.api_key_env: "]),
        ("throttling: {parameters: {}}", ["1: throttling.system: Field required"]),
        ("throttling: {system: s, parameters: {a: .inf}}", ["1: throttling.parameters.a: "]),
        ("aliases: {a: b, b: c}", ["1: aliases.a: 'b' is an alias itself; targets must be models"]),
    ],
)
def test_problems_are_shown_with_line_and_field(text, problems):
    try:
        read(text)
        found = []
    except DeclarationError as error:
        found = str(error).splitlines()
    assert len(found) == len(problems)
    for line, problem in zip(found, problems, strict=True):
        assert line.startswith(f"{FILE}:{problem}"), line


def test_values_have_one_form():
    app = "profile: {stages: [{input_tokens: 1, output_tokens: 1}]}"
    short = read(f"tenants: {{A: {{apps: {{b: {{{app}}}}}}}}}")
    long = read(
        f"""
tenants:
  " A":
    weight: 1
    contract: {{soft_end: warn, rpm_limit: null}}
    apps: {{b: {{{app}, user_headers: [X-User-Id], cors_origins: [], limits: {{}}}}}}
    users: {{}}
"""
    )
    assert short == long


def test_the_last_price_that_has_begun_counts():
    prices = """
prices:
- {model: m, input: 1, output: 1}
- {model: m, input: 3, output: 3, valid_from: 2029-12-31T23:00:00-02:00}
- {model: m, input: 2, output: 2, valid_from: 2029-12-31T23:00:00Z}
"""
    found = {key: values["input"] for key, values in objects_of(read(prices), NOW).items()}
    assert found == {
        Key("price", ("m", "")): 2,
        Key("price", ("m", "2030-01-01T01:00:00+00:00")): 3,
    }
