"""The states of a call as a diagram, from the table of ``running_call``: run this file."""

from fairserve.platform.serving.completions.running_call import TRANSITIONS


def diagram():
    """Return the diagram, in Mermaid's notation."""
    lines = ["stateDiagram-v2", "    [*] --> waiting"]
    for state, steps in TRANSITIONS.items():
        lines += [f"    {state} --> {after}: {step}" for step, after in steps.items()]
    return "\n".join([*lines, "    ended --> [*]"])


if __name__ == "__main__":
    print(diagram())
