"""A change in the audit log is shown as what changed, not as two documents."""

from fairserve.platform.console.pages.audit import differences

BEFORE = {
    "name": "acme",
    "contract": {"rpm_limit": 6000, "tpm_limit": None, "allowed_models": ["a"]},
    "profile": {"stages": [1, 2]},
    "limits": {},
}


def test_only_changed_values_are_named():
    after = {
        "name": "acme",
        "contract": {"rpm_limit": 6, "tpm_limit": None, "allowed_models": ["a", "b"]},
        "profile": None,
        "limits": {"user_rpm": 3},
    }
    assert list(differences(BEFORE, after)) == [
        ("contract.rpm_limit", 6000, 6),
        ("contract.allowed_models", ["a"], ["a", "b"]),
        ("profile.stages", [1, 2], None),
        ("limits.user_rpm", None, 3),
    ]
    assert not list(differences(BEFORE, BEFORE))


def test_what_is_created_or_removed_has_one_side():
    assert list(differences(None, {"name": "x", "contract": {"rpm_limit": 1}})) == [
        ("name", None, "x"),
        ("contract.rpm_limit", None, 1),
    ]
    assert list(differences({"name": "x", "note": None}, None)) == [("name", "x", None)]
    assert not list(differences(None, None))
    assert not list(differences(None, {}))


def test_an_entry_that_is_added_to_nothing_is_named():
    before, after = {"parameters": {}}, {"parameters": {"hold_s": 120}}
    assert list(differences(before, after)) == [("parameters.hold_s", None, 120)]
    assert list(differences({"parameters": {}}, {})) == [("parameters", {}, None)]
