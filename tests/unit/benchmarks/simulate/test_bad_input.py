"""Bad input of ``fairserve simulate`` causes one line with problem and place, and exit code 2."""

import gzip
import json

import pytest

from fairserve.platform.server import cli


def call(name="1", **changes):
    return {"id": name, "in": 40, "out": 8, **changes}


def interaction(name, *calls, **changes):
    return {"iid": name, "bs": 16, "arrival_s": 0, "calls": list(calls or [call()]), **changes}


GOOD = interaction("a")
COSTS = {
    "kv_capacity_tokens": 20_000,
    "prefill_base_s": 0.01,
    "prefill_s_per_token": 0.0001,
    "prefill_s_per_pair": 0,
    "decode_base_s": 0.02,
    "decode_s_per_sequence": 0.0,
    "decode_s_per_held_token": 0.0,
}


def lines(*values):
    return "".join(json.dumps(value) + "\n" for value in values)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(lines(GOOD, interaction("b", call(), call("2", deps=["1"]))))
    return path


def input_error(capsys, tmp_path, *arguments):
    """Return the one line of the error; files on disk remain unchanged."""
    out = tmp_path / "out.json"
    out.write_text("earlier")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    asked = ["--json", out, "--plot", tmp_path / "plots", *arguments]
    try:
        code = cli.main(["simulate", *map(str, asked)])
    except SystemExit as exit_:
        code = exit_.code
    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "plots").exists()
    line, *more = printed.err.splitlines()
    assert all(extra.startswith("  ") for extra in more), "a list of what is known may follow"
    assert line.startswith("fairserve simulate: ")
    return line


CYCLE = interaction("b", call("1", deps=["3"]), call("2", deps=["1"]), call("3", deps=["2"]))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (CYCLE, "deps form a cycle: 1 -> 3 -> 2 -> 1"),
        (interaction("b", call(deps=["9"])), "unknown dependency '9'"),
        (interaction("b", arrival_s=-1), "arrival_s must be a finite number of at least 0, got -1"),
        (interaction("b", call(gap=-0.5)), "gap must be a finite number of at least 0"),
        (interaction("b", call(out=-1)), "out must be an integer of at least 0"),
        (interaction("b", call(**{"in": 10_000_000})), "interaction 'b' needs 10000008 tokens"),
        (interaction("b", call(out=10_000, n=10_000)), "needs 100000040 tokens; a worker of"),
        (interaction("b", call(blk=[[1 << 40, 1]])), "allowed: below 2^40"),
        (interaction("a"), "iid 'a' is also in line 1"),
        (["no object"], "expected a JSON object"),
    ],
)
def test_an_invalid_interaction_is_named_by_file_and_line(capsys, tmp_path, second, message):
    path = tmp_path / "trace.jsonl"
    path.write_text(lines(GOOD, second))
    error = input_error(capsys, tmp_path, "--trace", path, "--system", "fcfs", "fairserve")
    assert f" {path}:2: " in error
    assert message in error


def test_the_line_is_named_for_merged_traces_and_several_cores(capsys, tmp_path, trace):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(lines(GOOD, interaction("b", call(out=10_000_000))))
    asked = ["--trace", trace, bad, "--arrivals", "even:1", "--users", 2, "--tenants", 2]
    error = input_error(capsys, tmp_path, *asked, "--system", "fcfs", "vtc", "--jobs", 2)
    assert f" {bad}:2: call '1' of interaction 'bad/b' needs 10000040 tokens" in error


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,9000000,1\n", 2),
        ("v.csv", "req_time_s,client,input_tokens,output_tokens\n0,a,5,5\n1,b,9000000,1\n", 3),
        (
            "m.jsonl",
            '{"timestamp":0,"input_length":9000000,"output_length":1,"hash_ids":[]}\n',
            1,
        ),
    ],
)
def test_a_call_that_never_fits_is_named_in_foreign_formats(capsys, tmp_path, name, text, line):
    path = tmp_path / name
    path.write_text(text)
    assert f" {path}:{line}: call '0'" in input_error(capsys, tmp_path, "--trace", path)


def test_the_pool_size_is_that_of_the_cost_model(capsys, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(lines(interaction("a", call(**{"in": 9_995, "out": 4}))))
    costs = ["--model-cost", "a10g-llama2-7b"]
    assert cli.main(["simulate", "--trace", str(path), *costs]) == 0
    capsys.readouterr()
    path.write_text(lines(interaction("a", call(**{"in": 9_995, "out": 5}))))
    assert "a10g-llama2-7b holds 10000" in input_error(capsys, tmp_path, "--trace", path, *costs)


def test_a_truncated_gzip_is_rejected(capsys, tmp_path):
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(lines(*(interaction(str(n)) for n in range(50))).encode())[:-20])
    error = input_error(capsys, tmp_path, "--trace", path)
    assert str(path) in error
    assert "the gzip data ends early; the file is truncated" in error


def test_a_missing_or_empty_file_is_rejected(capsys, tmp_path, trace):
    assert "nowhere.jsonl" in input_error(
        capsys, tmp_path, "--trace", trace, tmp_path / "nowhere.jsonl"
    )
    trace.write_text("")
    assert f"{trace}:1: the file is empty" in input_error(capsys, tmp_path, "--trace", trace)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--system", "fcfs", "nope"], "unknown system 'nope'; known: fcfs, vtc"),
        (["--system", "rpm-0"], "unknown system 'rpm-0'"),
        (["--set", "quantum"], "--set is 'quantum'; allowed: KEY=VALUE"),
        (["--set", "nope=1"], "unknown parameter 'nope'; this system has: feed_window"),
        (["--set", "feeder.nope=1"], "unknown parameter 'feeder.nope'"),
        (["--set", "feed_window=7"], "system fairserve: feed_window is 7"),
        (["--set", "local.quantum=abc"], "local.quantum: Input should be a valid"),
        (["--set", "high_watermark=true"], "high_watermark: Input should be a valid number"),
        (["--set", "vtc:local.we=1"], "--set is 'vtc:local.we=1'; simulated: fairserve"),
        (["--arrivals", "sometimes"], "--arrivals is 'sometimes'; allowed: recorded, once, even"),
        (["--arrivals", "even"], "--arrivals is 'even'"),
        (["--arrivals", "once:3"], "--arrivals is 'once:3'"),
        (["--arrivals", "poisson:x"], "--arrivals has rate 'x'"),
        (["--arrivals", "poisson:nan"], "above 0 and finite is allowed"),
        (["--from-s", "-1"], "'--from-s': -1 is given; allowed: finite, 0 or more"),
        (["--from-s", "nan"], "'--from-s': nan is given"),
        (["--from-s", "5", "--to-s", "3"], "from 0 to below to_s, 3 is allowed"),
        (["--from-s", "5"], "trace: no interaction is left to simulate"),
        (["--time-scale", "0"], "above 0 and finite is allowed"),
        (["--users", "2", "--user-skew", "-1"], "skew -1.0"),
        (["--abusive", "1"], "--abusive needs --users"),
        (["--users", "2", "--abusive", "2"], "fewer than users is allowed"),
        (["--users", "2", "--abusive", "1", "--abusive-share", "1"], "between 0 and 1"),
        (["--limit", "0"], "'--limit': Input should be greater than or equal to 1"),
        (["--workers", "two"], "'--workers': Input should be a valid integer"),
        (["--dispatch-delay-s", "inf"], "allowed: finite, 0 or more"),
        (["--seed", "-1"], "'--seed': Input should be greater than or equal to 0"),
        (["--isolation", "anybody"], "'anybody' is not one of 'none', 'tenant', 'app', 'user'"),
        (["--model-cost", "nope"], "unknown cost model 'nope'; allowed: a10g-llama2-7b"),
        (["--nope"], "No such option: --nope"),
    ],
)
def test_an_invalid_argument_is_rejected(capsys, tmp_path, trace, arguments, message):
    assert message in input_error(capsys, tmp_path, "--trace", trace, *arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "an object is expected"),
        (json.dumps({**COSTS, "prefil_base_s": 1}), "unknown field 'prefil_base_s'; allowed: name"),
        (json.dumps({**COSTS, "decode_base_s": -1}), "decode_base_s is -1; allowed: 0 to 1e+09"),
    ],
)
def test_an_invalid_cost_model_is_named_by_its_file(capsys, tmp_path, trace, text, message):
    path = tmp_path / "costs.json"
    path.write_text(text)
    error = input_error(capsys, tmp_path, "--trace", trace, "--model-cost", path)
    assert f"{path}: " in error
    assert message in error


@pytest.mark.parametrize("flag", ["--json", "--plot"])
def test_an_unwritable_output_is_detected_before_the_work(capsys, tmp_path, trace, flag):
    folder = tmp_path / "folder"
    folder.mkdir()
    if flag == "--json":
        assert "is a folder" in input_error(capsys, tmp_path, "--trace", trace, flag, folder)
        missing = tmp_path / "none" / "out.json"
        assert "there is no folder" in input_error(
            capsys, tmp_path, "--trace", trace, flag, missing
        )
    else:
        assert "not a folder" in input_error(capsys, tmp_path, "--trace", trace, flag, trace)
        below = trace / "plots"
        assert "not a folder" in input_error(capsys, tmp_path, "--trace", trace, flag, below)
    assert list(folder.iterdir()) == []
