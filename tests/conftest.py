"""The harness of all black-box tests: every behaviour runs in three modes, and leaves nothing behind.

    pytest tests                          everything in modes plain, shunt and tcp
    pytest tests --modes plain            without the library
    SHUNT_LIB=/path/libshunt.so pytest tests -k 'epoll and shunt'

A mode that needs libshunt.so and does not find it makes the whole run fail; nothing is ever skipped silently. A test whose program is
not installed (tests/packages.txt) is skipped with the program's name, and fails with BOOTSTRAP=install, as in CI.
"""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from harness import modes, system  # noqa: E402
from harness.runner import Runner  # noqa: E402

HERE = Path(__file__).parent


def pytest_addoption(parser):
    parser.addoption("--modes", default=",".join(modes.MODES), help="which of plain,shunt,tcp to run, or far")
    parser.addoption("--shared-shm", action="store_true", help="use the machine's /dev/shm, not one of our own")
    parser.addoption("--apps", help="the folder with the programs of tests/apps, built for another libc (make libcs)")


def pytest_configure(config):
    config.addinivalue_line("markers", "soak: has a long form, which `make soak` runs")
    config.addinivalue_line("markers", "alone(why): nothing may run beside it; scripts/test.sh runs it after the others")
    config.addinivalue_line("markers", "cluster: connections that must move between hosts; `make far` runs it")
    config.addinivalue_line("markers", "conformance: a foreign suite; `make conformance` runs all of them, in full")
    # A shell has its background jobs ignore these, and programs inherit that: HAProxy's workers would not end by them. What has a handler here ends
    # them again.
    for ignored, handler in (signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL):
        if signal.getsignal(ignored) == signal.SIG_IGN:
            signal.signal(ignored, handler)
    chosen = config.getoption("--modes").split(",")
    if unknown := set(chosen) - set(modes.MODES + modes.ON_DEMAND):
        pytest.exit(f"no such mode: {', '.join(sorted(unknown))}; there are {', '.join(modes.MODES + modes.ON_DEMAND)}", 4)
    if not config.option.collectonly:
        if set(chosen) != {"plain"} and modes.library() is None:
            pytest.exit("libshunt.so is not there: build it (cargo build --release), or set SHUNT_LIB to it, "
                        "or choose `--modes plain`", 4)
        config.staged = modes.stage()
        system.adopt_orphans()
        config.own_shm = not config.getoption("--shared-shm") and system.own_shm()
        # A worker of pytest-xdist: others run beside it, with the same ports.
        if hasattr(config, "workerinput") and not system.own_net():
            pytest.exit("tests that run beside one another need networks of their own: be root, or leave -n away", 4)
        if "far" in chosen and (hasattr(config, "workerinput") or config.getoption("numprocesses", None) is None):
            config.hosts = modes.Hosts()
            system.OF_THE_RUN.update(agent.pid for agent in config.hosts.agents)


def pytest_report_header(config):
    own = "its own" if getattr(config, "own_shm", False) else "shared with the machine"
    return f"modes: {config.getoption('--modes')}; library: {modes.library()}; /dev/shm: {own}"


def pytest_generate_tests(metafunc):
    if "mode" in metafunc.fixturenames:
        metafunc.parametrize("mode", metafunc.config.getoption("--modes").split(","), scope="session")


def known_failures():
    """The lines of tests/known.txt: (pattern, reason)."""
    for line in (HERE / "known.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, reason = line.split("|", 1)
            yield pattern.strip(), reason.strip()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """What is compared with the plain run is run by the worker that has it."""
    from xdist.scheduler import LoadScopeScheduling

    class ModesTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return re.sub(rf"\b({'|'.join(modes.MODES)})\b", "*", nodeid)

    return ModesTogether(config, log)


def pytest_collection_modifyitems(items):
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        for pattern, reason in known_failures():
            # The brackets are pytest's, only * is a pattern.
            if re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name):
                item.add_marker(pytest.mark.xfail(reason=f"known: {reason}", strict=False))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    setattr(item, f"report_{call.when}", outcome.get_result())


@pytest.fixture(scope="session")
def apps(pytestconfig):
    """The folder with the built victim programs (tests/apps)."""
    if built := pytestconfig.getoption("--apps"):
        return Path(built).resolve()
    out = (pytestconfig.staged or modes.ROOT / "build") / "apps"
    with system.building(out):
        made = subprocess.run(["make", "-s", "-j2", "-C", str(HERE / "apps"), f"OUT={out}"], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.exit(f"tests/apps does not build:\n{made.stdout}{made.stderr}", 4)
    return out


@pytest.fixture(scope="session")
def musl_apps(pytestconfig):
    """Builds one of the victim programs for musl: its path."""
    out = (pytestconfig.staged or modes.ROOT / "build") / "musl"
    compiler = f"{system.program('musl-gcc')} -idirafter /usr/include -idirafter /usr/include/x86_64-linux-gnu -include older.h"

    def built(name):
        with system.building(out):
            subprocess.run(["make", "-s", "-C", HERE / "apps", f"OUT={out}", f"CC={compiler}", out / name], check=True)
        return out / name
    return built


@pytest.fixture
def r(request, mode, apps):
    """The Runner of this test: starts programs in this test's mode (harness/runner.py)."""
    runner = Runner(mode, apps)
    yield runner
    report = getattr(request.node, "report_call", None)
    if report is not None and report.failed:
        runner.show()
    if wrong := runner.finish():
        pytest.fail("\n".join(wrong))


_plain_results = {}


@pytest.fixture
def same_as_plain(request, r, mode, apps):
    """same_as_plain(scenario): runs scenario(runner) in this mode and, once a session, plain; what it returns must be equal."""

    def compare(scenario):
        key = (request.node.path, request.node.originalname, scenario.__qualname__,
               tuple(sorted((k, str(v)) for k, v in request.node.callspec.params.items() if k != "mode")))
        result = scenario(r)
        if mode == "plain":
            _plain_results.setdefault(key, result)
        elif key not in _plain_results:
            plain = Runner("plain", apps)
            try:
                _plain_results[key] = scenario(plain)
            finally:
                plain.stop_all()
                shutil.rmtree(plain.tmp, ignore_errors=True)
        assert result == _plain_results[key], "the output differs from the plain run's"
        return result

    return compare


@pytest.fixture
def need():
    """need('redis-server'): the program's path; the test does not run when it is not installed."""
    return system.program


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call():
    """A program that a test starts by its bare name is needed, too."""
    outcome = yield
    error = getattr(outcome, "exception", None) or (outcome.excinfo and outcome.excinfo[1])
    if name := system.not_started(error):
        try:
            system.lacking(name)
        except BaseException as skipped:
            outcome.force_exception(skipped)


def pytest_terminal_summary(terminalreporter):
    """Each test that did not run, for the last line of scripts/test.sh."""
    for report in terminalreporter.getreports("skipped"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"NOT RUN {report.nodeid}: {reason.removeprefix('Skipped: ')}")


def pytest_unconfigure(config):
    if hosts := getattr(config, "hosts", None):
        hosts.stop()
    if getattr(config, "staged", None):
        shutil.rmtree(config.staged, ignore_errors=True)
