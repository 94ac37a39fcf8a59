"""CPython's own tests of its network modules (Debian's libpython3.N-testsuite)."""

import xml.etree.ElementTree as xml

import pytest

from harness.conform import FULL, outcomes

pytestmark = pytest.mark.conformance

PYTHON = "/usr/bin/python3"  # the one that the suite belongs to
# In the first two connections must move to memory. The others have a connection for each request, or end before anybody is seen to
# wait for them, so that it is chance whether one moves; or they test something else of sockets and processes.
SHORT = ["test_socket", "test_ftplib", "test_httplib", "test_smtplib", "test_asyncio.test_sendfile", "test_asyncio.test_sock_lowlevel",
         "test_asyncio.test_streams"]
LONG = ["test_asyncio", "test_ssl", "test_poplib", "test_imaplib", "test_nntplib", "test_xmlrpc"]
SHORT_BESIDE = ["test_httpservers", "test_urllib2_localnet", "test_asynchat"]
LONG_BESIDE = ["test_socketserver", "test_logging", "test_wsgiref", "test_multiprocessing_spawn", "test_selectors", "test_epoll", "test_poll",
               "test_select", "test_telnetlib", "test_eintr", "test_signal", "test_subprocess", "test_threading", "test_docxmlrpc",
               "test_fork1", "test_posix", "test_io", "test_thread", "test_threadsignals", "test_os", "test_asyncore"]
# Not TCP, and hangs where the machine's hypervisor half supports it.
IGNORED = ["*VSOCK*"]


def outcome(case):
    for kind, name in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
        if case.find(kind) is not None:
            return name
    return "passed"


def suite(module):
    def scenario(r):
        results = r.tmp / f"{module}.xml"
        ignore = [word for pattern in IGNORED for word in ("-i", pattern)]
        # -u network: sockets on this host; what needs the internet asks for urlfetch.
        done = r.run([PYTHON, "-m", "test", "-u", "network", "--junit-xml", results, *ignore, module], timeout=400, status=None, cwd=r.tmp,
                     env={"SHUNT_PROMOTE_AFTER": "0"})
        if not results.exists():
            return {"(the run)": f"status {done.status}"}
        return outcomes((case.get("name"), outcome(case)) for case in xml.parse(results).iter("testcase"))

    return scenario


@pytest.mark.parametrize("module", SHORT + SHORT_BESIDE + (LONG + LONG_BESIDE if FULL else []))
def test_cpython(conform, module):
    conform(f"cpython {module}", suite(module), moves=module in SHORT + LONG)
