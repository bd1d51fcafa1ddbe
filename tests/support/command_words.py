"""Words of every management command, made from its declared parameters.

A command with a parameter that is not known here fails its tests, so that a new one gets a value.
"""

from typer.main import get_command

from fairserve.platform.server.cli import COMMANDS

NOUNS = ("tenant", "app", "key", "price", "user", "webhook")
OWNERS = ("app", "tenant_id", "admin")
"""Flags of the commands of keys, of which each takes one."""
KINDS = {"tenant_id": "tenant", "tenant": "tenant", "app": "app", "key": "key"}
KINDS |= {"webhook": "webhook", "price": "price"}
"""Kinds of objects by the parameters that name them, besides ``id``, which is one of the noun."""
REQUIRED = {
    "name": "a new name",
    "user": "zoé",
    "model": "m",
    "url_of_events": "https://1.1.1.1/",
    "profile": "profile.json",
    "input": 1,
    "output": 2,
    "events": "budget.reached",
}
"""Values of required parameters that name no object."""
ALSO = {
    "tenant set": ["--weight", 2],
    "app set": ["--weight", 2],
    "user set": ["--weight", 2],
    "user erase": ["--yes"],
    "key change": ["--role", "viewer"],
    "key rotate": ["--grace", 60],  # the old key remains valid
    "webhook set": ["--description", "x"],
}
"""Flags without which a command has nothing to do."""


def every_command():
    """Return noun and name of each management command."""
    return [(noun, name) for noun in NOUNS for name in get_command(COMMANDS[noun].load()).commands]


def forms_of(noun, name, objects):
    """Return the forms of a command, as lists of words, that name these objects, by their kind."""
    parameters = get_command(COMMANDS[noun].load()).commands[name].params
    words, flags = [], {}
    for each in parameters:
        kind = noun if each.name == "id" else KINDS.get(each.name)
        if kind is not None and each.param_type_name == "option":
            flags[each.name] = [each.opts[0], objects[kind]]
        elif kind is not None:
            words.append(objects[kind])
        elif each.required:
            flag = each.opts[:1] if each.param_type_name == "option" else []
            words += [*flag, REQUIRED[each.name]]
    base = [noun, name, *words, *ALSO.get(f"{noun} {name}", ())]
    if noun == "key" and "admin" in {each.name for each in parameters}:
        of_app = flags["app"] + flags["tenant"]
        return [[*base, *owner] for owner in (["--admin"], flags["tenant_id"], of_app)]
    return [[*base, *(word for flag in flags.values() for word in flag)]]
