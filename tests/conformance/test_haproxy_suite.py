"""HAProxy's own tests (reg-tests of Debian's source package) of the installed haproxy, driven by varnishtest, from which the vtest that
they are written for has come. The servers and clients that it plays run under Shunt, too."""

import os
import re
import signal

import pytest

from harness import system
from harness.conform import outcomes
from harness.sources import source

pytestmark = pytest.mark.conformance

GROUPS = """balance cache checks compression connection contrib converter filters http-capture http-cookies http-errorfiles http-messaging
http-rules http-set-timeout log lua mailers mcli peers sample_fetches server spoe ssl startup stick-table stickiness
stream tcp-rules webstats""".split()
LINE = re.compile(r"^#\s+top\s+TEST (\S+) (passed|skipped|FAILED|TIMED OUT)", re.M)


def suite(group, need):
    def scenario(r):
        done = r.run(["scripts/run-regtests.sh", "--v", f"reg-tests/{group}"], cwd=source("haproxy"), timeout=400, status=None,
                     env={"TMPDIR": r.tmp, "HAPROXY_PROGRAM": need("haproxy"), "VTEST_PROGRAM": need("varnishtest")})
        # A test that breaks off leaves its haproxy.
        for pid, line in system.descendants().items():
            if str(r.tmp) in line:
                os.kill(pid, signal.SIGKILL)
        return outcomes((test.removeprefix("reg-tests/"), outcome) for test, outcome in LINE.findall(done.text))

    return scenario


@pytest.mark.parametrize("group", GROUPS)
def test_haproxy(conform, need, group):
    conform(f"haproxy {group}", suite(group, need), moves=False)
