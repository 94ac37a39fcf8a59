"""``python -m shunt.filters.worker``: a process of a group. Groups start it; nobody else has a ticket."""

from __future__ import annotations

import logging
import os
import signal
import sys

from shunt import _native
from shunt.filters._filter import make_chooser, make_filter
from shunt.filters._agent import Forward, end_with
from shunt.filters._launch import LOG_TO, PARENT, TICKET


def main() -> int:
    ticket = os.environ.pop(TICKET, None)
    if ticket is None:
        print(f"{TICKET} is not set: a filter group starts this program, people do not", file=sys.stderr)
        return 2
    if parent := os.environ.pop(PARENT, None):
        end_with(int(parent))
    sys.path += [path for path in sys.argv[1:] if path not in sys.path]
    # Ctrl-C goes to all processes of a terminal; the group ends this one in its own way.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    level = os.environ.get("SHUNT_FILTERS_LOG", "WARNING").upper()
    logging.basicConfig(level=int(level) if level.isdecimal() else level, format="%(name)s: %(levelname)s: %(message)s")
    if log_to := os.environ.pop(LOG_TO, None):
        logging.getLogger("shunt.filters").addHandler(Forward(int(log_to)))
    try:
        _native.serve(ticket, make_filter, make_chooser)
    except OSError as error:
        print(f"shunt filters: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main())
