"""A network namespace with several links to this one, each of which can be cut alone."""

import contextlib
import os
import subprocess

NETWORKS = [f"198.{second}.{third}" for second in (18, 19) for third in range(256)]
"""Addresses for measurements of networks: nobody else's."""


class LinkedNamespace:
    """A namespace with a link of its own for each name. Raises OSError where it is not permitted.

    While a link is cut its packets are lost, in both directions, and no connection is reset.
    """

    def __init__(self, names):
        number = os.getpid()
        self._name = f"fairserve-{number}"
        self.prefix = ["ip", "netns", "exec", self._name]
        """Prefix of a command that runs inside."""
        self.addresses = {}
        """Address of the inside for who uses the link of a name."""
        self._inner = {}
        try:
            _ip("netns", "add", self._name)
            _ip("link", "set", "lo", "up", inside=self._name)
            network = NETWORKS[number % len(NETWORKS)]
            for place, name in enumerate(names):
                self._add(name, f"fs{number}{place}", f"{network}.{place * 4}")
        except BaseException:
            self.close()
            raise

    def _add(self, name, interface, network):
        inner = self._inner[name] = f"{interface}i"
        first, last = network.rsplit(".", 1)
        outside, inside = (f"{first}.{int(last) + each}" for each in (1, 2))
        _ip("link", "add", interface, "type", "veth", "peer", "name", inner, "netns", self._name)
        _ip("addr", "add", f"{outside}/30", "dev", interface)
        _ip("link", "set", interface, "up")
        _ip("addr", "add", f"{inside}/30", "dev", inner, inside=self._name)
        _ip("link", "set", inner, "up", inside=self._name)
        self.addresses[name] = inside

    def cut(self, name):
        _ip("link", "set", self._inner[name], "down", inside=self._name)

    def restore(self, name):
        _ip("link", "set", self._inner[name], "up", inside=self._name)

    def close(self):
        """Remove the namespace; its links end with it once no process is inside."""
        with contextlib.suppress(OSError):
            _ip("netns", "del", self._name)


def _ip(*arguments, inside=None):
    where = [] if inside is None else ["-n", inside]
    done = subprocess.run(["ip", *where, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
