"""Deliver pending events in a separate process: python webhook_deliverer.py DATABASE_URL DATA_DIR"""

import sys

from fairserve.platform.background.webhooks.delivery import deliver_due
from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.db.key_hash import key_hasher
from fairserve.platform.server.settings import Settings


def main():
    url, folder = sys.argv[1:]
    settings = Settings(
        data_dir=folder,
        webhook_allowed_networks="127.0.0.0/8",
    )
    sessions, hasher = session_factory(connect(url)), key_hasher(settings.db)
    print(deliver_due(sessions, settings.background, hasher, timeout_s=60.0), flush=True)


if __name__ == "__main__":
    main()
