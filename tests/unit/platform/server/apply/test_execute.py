"""A plan is executed against answers of a server: rejected, lost, or of what others changed."""

import pytest

from fairserve.platform.base.command_line import FAILED, CommandError
from fairserve.platform.server.admin_cli.client import RejectedRequestError
from fairserve.platform.server.apply.execute import Execution
from fairserve.platform.server.apply.key_files import KeyFiles
from fairserve.platform.server.apply.plan import Change, ChangePlan, Key

TENANT = Change("create", Key("tenant", ("R & D",)), after={"weight": 1.0})
APP = Change("create", Key("app", ("R & D", "chat")), after={"weight": 1.0})
HOOK = Change("create", Key("webhook", ("R & D", "https://a.org/?token=1")), after={"events": []})
IDS = {TENANT.key: "tn_1"}
AWAY = CommandError("http://h does not answer: timed out", FAILED)


class Server:
    """Answers requests in order; an answer that is an error is raised."""

    def __init__(self, *answers):
        self.answers, self.requests = list(answers), []

    def call(self, method, path, body=None, **query):
        self.requests.append((method, path, body))
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def error_of(tmp_path, answer, *changes):
    """Execute changes of which the last one gets this answer; return the error."""
    made = [{"id": "x", "api_key": "k"}] * (len(changes) - 1)
    files = KeyFiles(tmp_path, kubernetes=False)
    execution = Execution(Server(*made, answer), IDS, files)
    try:
        list(execution.run(ChangePlan(changes, ())))
    except CommandError as error:
        return execution.made, error.message
    except KeyboardInterrupt:  # which would end pytest
        pass
    return pytest.fail("there is no message")


@pytest.mark.parametrize(
    ("change", "command"),
    [
        (TENANT, "fairserve key create --tenant-id 'R & D'"),
        (APP, "fairserve key create --app chat --tenant 'R & D'"),
        (HOOK, "fairserve webhook rotate URL --tenant 'R & D'"),
    ],
)
@pytest.mark.parametrize(
    "answer", [AWAY, KeyboardInterrupt(), RejectedRequestError("Bad Gateway", 502)]
)
def test_a_key_that_was_perhaps_made_is_named(tmp_path, change, command, answer):
    """Another run finds the object, and shows no key."""
    made, message = error_of(tmp_path, answer, change)
    assert message.startswith(f"{change.key}: ")
    assert f"if it was created, its secret is lost, make another one: {command}" in message
    assert (made, "token" in message) == (0, False)


def test_a_rejected_object_has_no_key(tmp_path):
    taken = RejectedRequestError("tenant tn_1 has this name; create a key with POST /admin/x", 409)
    made, message = error_of(tmp_path, taken, APP, TENANT)
    assert (made, message) == (1, "tenant R & D: tenant tn_1 has this name; create a key")


def test_throttling_that_changed_since_the_plan_is_named(tmp_path):
    taken = RejectedRequestError("expected_version is not in force", 409, "expected_version")
    change = Change("change", Key("throttling", ()), {}, {"system": "fairserve"}, "3")
    made, message = error_of(tmp_path, taken, change)
    assert (made, message) == (0, "throttling: it was changed after the plan was made")


def test_an_object_whose_key_cannot_be_written_is_made(tmp_path):
    (tmp_path / "r-d.key").touch()
    made, message = error_of(tmp_path, {"id": "tn_1", "api_key": "k"}, TENANT)
    assert made == 1
    assert "r-d.key cannot be written: File exists; the secret of tenant R & D is lost" in message
    assert message.endswith("fairserve key create --tenant-id 'R & D'")


@pytest.mark.parametrize("action", ["change", "create"])
def test_fields_of_a_user_that_are_as_declared_stay_as_others_set_them(action):
    """An API request replaces all settings; somebody changed some since the plan."""
    before = {"weight": 1.0, "rpm": 5, "contract.rpm_limit": 7, "contract.tpm_limit": None}
    after = before | {"weight": 2.0, "contract.rpm_limit": None}
    if action == "create":
        before, after = {}, {"weight": 2.0, "rpm": None, "contract.tpm_limit": None}
    change = Change(action, Key("user", ("R & D", "anna")), before, after)
    now = {"weight": 1.0, "priority_weight": 3.0, "rpm": 9, "blocked": True, "managed_by": "a"}
    limits = {"rpm_limit": 7, "tpm_limit": 100, "soft_budget": None, "soft_end": "warn"}
    server = Server(now | {"contract": limits}, None)
    list(Execution(server, IDS, None).run(ChangePlan((change,), ())))
    kept = {"tpm_limit": 100} if action == "change" else {"rpm_limit": 7, "tpm_limit": 100}
    assert server.requests[1] == (
        "PUT",
        "/admin/users/tn_1/anna",
        {"weight": 2.0, "priority_weight": 3.0, "rpm": 9, "blocked": True, "contract": kept},
    )
