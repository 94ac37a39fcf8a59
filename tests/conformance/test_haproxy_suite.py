"""HAProxy's own tests (reg-tests of Debian's source package) of the installed haproxy, driven by varnishtest, from which the vtest that
they are written for has come. The servers and clients that it plays run under Shunt, too."""

import re

import pytest

from harness.conform import outcomes
from harness.sources import source

pytestmark = pytest.mark.conformance

GROUPS = """balance cache checks compression connection contrib converter filters http-capture http-cookies http-errorfiles http-messaging
http-rules http-set-timeout jwt log lua mailers mcli peers sample_fetches seamless-reload server spoe ssl startup stick-table stickiness
stream tcp-rules webstats""".split()
# What connects nothing, or connects only once for each test: too short to be moved.
LINE = re.compile(r"^#\s+top\s+TEST (\S+) (passed|skipped|FAILED|TIMED OUT)", re.M)


def suite(group, need):
    def scenario(r):
        done = r.run(["scripts/run-regtests.sh", "--v", f"reg-tests/{group}"], cwd=source("haproxy"), timeout=400, status=None,
                     env={"TMPDIR": r.tmp, "HAPROXY_PROGRAM": need("haproxy"), "VTEST_PROGRAM": need("varnishtest")})
        return outcomes((test.removeprefix("reg-tests/"), outcome) for test, outcome in LINE.findall(done.text))

    return scenario


@pytest.mark.parametrize("group", GROUPS)
def test_haproxy(conform, need, group):
    conform(f"haproxy {group}", suite(group, need), moves=False)
