"""A person who signed in to the console at the OpenID provider."""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.platform.base.errors import PermissionDeniedError
from fairserve.platform.base.roles import Role
from fairserve.platform.db.base import NAME_CHARS
from fairserve.platform.tenancy.auth import Principal

MAX_SUBJECT_CHARS = 180
"""Maximum length of a person's id, with which the audit log names it whole."""


@dataclass(frozen=True, slots=True)
class Person:
    """A person with the role that its groups had at the sign-in."""

    issuer: str
    subject: str
    """Id of the person at the issuer; it never changes."""
    name: str
    """Name or mail address, for display; empty if the provider sends none."""
    role: Role

    @property
    def principal(self) -> Principal:
        """Return the principal of the person's changes."""
        return Principal("admin", None, None, "", actor_of(self.subject, self.name), self.role)


class NoRoleError(PermissionDeniedError):
    """The provider knows the person, but no group of the person has a role here."""

    def __init__(self, subject: str, name: str, provider: str) -> None:
        super().__init__(
            f"none of your groups at {provider} has a role here; ask an administrator for one",
            code="no_role",
        )
        self.actor = actor_of(subject, name)


def actor_of(subject: str, name: str) -> str:
    """Return a person as the audit log names it: by its id, and by its name in parentheses."""
    actor = f"oidc:{subject}"
    return f"{actor} ({name})"[:NAME_CHARS] if name and name != subject else actor
