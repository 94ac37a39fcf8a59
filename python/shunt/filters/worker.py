"""``python -m shunt.filters.worker``: a process of a group. Groups start it; nobody else has a ticket."""

from __future__ import annotations

import logging
import os
import signal
import sys

from shunt import _native
from shunt.filters._filter import make_chooser, make_filter
from shunt.filters._launch import TICKET


def main() -> int:
    ticket = os.environ.pop(TICKET, None)
    if ticket is None:
        print(f"{TICKET} is not set: a filter group starts this program, people do not", file=sys.stderr)
        return 2
    sys.path += [path for path in sys.argv[1:] if path not in sys.path]
    # Ctrl-C goes to all processes of a terminal; the group ends this one in its own way.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=os.environ.get("SHUNT_FILTERS_LOG", "WARNING").upper(), format="%(name)s: %(levelname)s: %(message)s")
    try:
        _native.serve(ticket, make_filter, make_chooser)
    except OSError as error:
        print(f"shunt filters: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main())
