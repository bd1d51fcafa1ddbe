"""Test times computed by hand, fused decode steps, and every error of a cost model's file."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.simulated.cost_model import (
    COST_MODELS,
    Accelerator,
    CostModel,
    ModelShape,
    cost_model,
    pairs,
    roofline,
)

FIELDS = {
    "kv_capacity_tokens": 1000,
    "prefill_base_s": 0.5,
    "prefill_s_per_token": 0.25,
    "prefill_s_per_pair": 0.125,
    "decode_base_s": 2.0,
    "decode_s_per_sequence": 0.5,
    "decode_s_per_held_token": 0.0625,
}


def model(**changes):
    return CostModel(**{"name": "test", **FIELDS, **changes})


def test_a_prefill_costs_the_pass_its_tokens_and_its_pairs():
    assert model().prefill_s(4, 10) == 0.5 + 4 * 0.25 + 10 * 0.125


@pytest.mark.parametrize(
    ("cached", "computed", "expected"),
    [(0, 0, 0), (0, 1, 1), (0, 3, 1 + 2 + 3), (10, 3, 11 + 12 + 13), (5, 0, 0)],
)
def test_a_token_attends_to_all_tokens_up_to_itself(cached, computed, expected):
    assert pairs(cached, computed) == expected


def test_a_decode_step_costs_the_step_its_sequences_and_held_tokens():
    assert model().decode_s(3, 16, 1) == 2.0 + 3 * 0.5 + 16 * 0.0625
    assert model().decode_s(3, 16, 0) == 0.0


def test_each_step_adds_a_held_token_per_sequence():
    # 16, 19 and 22 tokens are held
    assert model().decode_s(3, 16, 3) == 3 * (2.0 + 1.5) + (16 + 19 + 22) * 0.0625


@given(
    sequences=st.integers(1, 512),
    held=st.integers(0, 500_000),
    steps=st.integers(0, 300),
    name=st.sampled_from(sorted(COST_MODELS)),
)
def test_fused_decode_equals_the_sum_of_its_steps(sequences, held, steps, name):
    costs = COST_MODELS[name]
    single = math.fsum(
        costs.decode_s(sequences, held + step * sequences, 1) for step in range(steps)
    )
    assert costs.decode_s(sequences, held, steps) == pytest.approx(single, rel=1e-9)


def test_a_roofline_reads_the_weights_once_a_pass_and_the_cache_of_every_token_held():
    shape = ModelShape(1e9, layers=10, hidden=1000, kv_heads=5, head_dim=100)
    assert shape.kv_bytes_per_token == 2 * 2 * 10 * 5 * 100
    costs = roofline("small", Accelerator(100e12, 1e12, 10e9), shape)
    # 88 % of 10 GB less 2 GB of weights, by 20 kB a token, to the nearest thousand
    assert costs.kv_capacity_tokens == 340_000
    weights_s = 2e9 / (0.8 * 1e12)
    assert costs.decode_base_s == pytest.approx(weights_s + 0.003)
    assert costs.prefill_base_s == costs.decode_base_s
    assert costs.decode_s_per_held_token == pytest.approx(20_000 / 0.8e12)
    assert costs.prefill_s_per_token == pytest.approx(2e9 / 55e12)
    assert costs.prefill_s_per_pair == pytest.approx(4 * 1000 * 10 / 55e12)
    assert "55%" in costs.origin


def test_known_models_are_ordered_by_accelerator_speed():
    known = [COST_MODELS[name] for name in ("h200-llama3-8b", "a100-llama3-8b", "a10g-llama2-7b")]
    for faster, slower in itertools.pairwise(known):
        assert faster.prefill_s(2000, 0) < slower.prefill_s(2000, 0)
        assert faster.decode_s(8, 8000, 1) < slower.decode_s(8, 8000, 1)
        assert faster.kv_capacity_tokens > slower.kv_capacity_tokens
    for name, costs in COST_MODELS.items():
        assert costs.name == name
        assert costs.origin
        assert cost_model(name) is costs


# --- files ------------------------------------------------------------------------------------------


def from_file(tmp_path, value):
    path = tmp_path / "costs.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return cost_model(str(path))


def test_a_file_gives_fields_and_name(tmp_path):
    assert from_file(tmp_path, FIELDS) == model(name="costs")
    more = {"name": "mine", "origin": "measured", "max_running": 8, "max_prefill_tokens": 100}
    assert from_file(tmp_path, {**FIELDS, **more}) == model(**more)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ("3", "an object is expected, with the fields of a cost model"),
        ({**FIELDS, "speed": 1}, "unknown field 'speed'; allowed: name, kv_capacity_tokens"),
        (
            {},
            "missing: kv_capacity_tokens, prefill_base_s, prefill_s_per_token, prefill_s_per_pair",
        ),
        ({k: v for k, v in FIELDS.items() if k != "decode_base_s"}, "missing: decode_base_s"),
        ({**FIELDS, "kv_capacity_tokens": 0}, "kv_capacity_tokens is 0; allowed: a whole number"),
        ({**FIELDS, "kv_capacity_tokens": 1.5}, "kv_capacity_tokens is 1.5"),
        ({**FIELDS, "max_running": True}, "max_running is True"),
        ({**FIELDS, "max_prefill_tokens": "8"}, "max_prefill_tokens is '8'"),
        ({**FIELDS, "prefill_base_s": -0.1}, "prefill_base_s is -0.1; allowed: 0 to 1e+09"),
        ({**FIELDS, "prefill_s_per_pair": None}, "prefill_s_per_pair is None"),
        ({**FIELDS, "prefill_s_per_token": math.nan}, "prefill_s_per_token is nan"),
        ({**FIELDS, "decode_s_per_sequence": math.inf}, "decode_s_per_sequence is inf"),
        ({**FIELDS, "decode_s_per_held_token": 10**400}, "decode_s_per_held_token is 1000"),
        ({**FIELDS, "decode_base_s": 0, "decode_s_per_sequence": 0}, "decode step takes no time"),
        ({**FIELDS, "loop": "decode-first"}, "loop is 'decode-first'; allowed: 'prefill-first'"),
        ({**FIELDS, "name": 5}, "name is 5; allowed: a text"),
    ],
)
def test_invalid_files_are_rejected(tmp_path, value, says):
    with pytest.raises(ValueError, match=r"costs\.json: ") as error:
        from_file(tmp_path, value)
    assert says in str(error.value)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown cost model 'b200'; allowed: a10g-llama2-7b, "):
        cost_model("b200")
