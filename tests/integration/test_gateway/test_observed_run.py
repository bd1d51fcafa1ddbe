"""Metrics, traces and logs of one agent run, as Prometheus, a collector and a log reader have them."""

import json
import os
from unittest import mock

import pytest
from gateway_server import ChildServer
from otlp_collector import OtlpCollector
from processes import eventually, free_port
from prometheus_server import prometheus

RUN = "observed"


class LoggingServer(ChildServer):
    """A process whose standard error, the log, is a file of its own."""

    @property
    def lines_path(self):
        return self.log_path.with_suffix(".jsonl")

    def errors_to(self, log):
        with self.lines_path.open("ab") as lines:
            return os.dup(lines.fileno())


@pytest.fixture(scope="module")
def collector():
    """Yield a collector."""
    collector = OtlpCollector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def observed(start_any, scripted, collector):
    """Return a server process whose metrics, traces and logs are switched on as the guides show it."""
    standard = {"OTEL_SERVICE_NAME": "gateway", "OTEL_RESOURCE_ATTRIBUTES": "site=here"}
    with mock.patch.dict(os.environ, collector.environment | standard):
        return start_any(
            *(LoggingServer, "--worker-urls", scripted[0].url, "--log-format", "json"),
            *("--tracing", "calls", "--metrics-port", str(free_port())),
        )


def make_calls(server):
    """Run a small agent: a plan, and two drafts that follow it; return the answers."""
    client = server.openai()

    def ask(text, agent, parents=""):
        headers = {"X-Interaction-Id": RUN, "X-Agent": agent, "X-Parent-Ids": parents}
        message = {"role": "user", "content": text}
        return client.chat.completions.create(
            model="scripted", messages=[message], extra_headers=headers
        )

    plan = ask("ok plan", "planner")
    drafts = [ask(f"ok draft {n}", "writer", plan.id) for n in range(2)]
    ended = server.request("DELETE", f"/v1/interactions/{RUN}", server.app_key)
    assert ended.status_code < 300, ended.text
    return [plan, *drafts]


def test_one_run_is_in_the_scrape_the_trace_and_the_log(tmp_path, observed, collector):
    answers = make_calls(observed)
    port = observed.flags[observed.flags.index("--metrics-port") + 1]
    with prometheus(tmp_path, f"127.0.0.1:{port}") as database:
        query = 'fairserve_calls_ended_total{outcome="completed"} == 3'
        ((labels, calls),) = eventually(lambda: database.query(query))
        assert (labels["model"], labels["job"], calls) == ("scripted", "fairserve", 3)
        tokens = database.query('sum(fairserve_call_tokens_total{kind="output"})')
        assert [value for _, value in tokens] == [9]
        assert database.query('up{job="fairserve"}')[0][1] == 1

    spans = eventually(lambda: len(collector.spans) == 4 and list(collector.spans))
    plan, *drafts, run = spans
    assert [span.attributes["gen_ai.response.id"] for span in (plan, *drafts)] == [
        answer.id for answer in answers
    ]
    assert [span.links for span in drafts] == [[plan.span_id]] * 2
    assert {span.parent_id for span in (plan, *drafts)} == {run.span_id}
    assert (run.resource["service.name"], run.resource["site"]) == ("gateway", "here")

    assert observed.stop() == 0
    lines = [json.loads(line) for line in observed.lines_path.read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    requests = {line["request_id"]: line for line in lines if line.get("status") == 200}
    for span in (plan, *drafts):
        line = requests[span.attributes["fairserve.request_id"]]
        assert (line["path"], line["worker"]) == ("/v1/chat/completions", "w0")
        assert line["output_tokens"] == span.attributes["gen_ai.usage.output_tokens"]
