"""Switches one mechanism after the other off, and holds its tests to failing: a test that cannot fail shows nothing.

    tests/switched_off.py             all of them, a minute each
    tests/switched_off.py exec fork   these

Each is a change to one place of the source, made in a checkout of the last commit under build/, for which the library is built anew and
the tests that it is there for are run in mode shunt. A place that is not found any more is an error: change it here with the source.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHECKOUT, TARGET = ROOT / "build/switched_off", ROOT / "target/switched_off"

# name: what does not happen, file, what stands there, what stands there instead, which tests (pytest -k), and, if it matters, what a failure says
MECHANISMS = {
    "exec": (
        "connections that cross exec and spawn are not handed over", "preload/src/exec.rs",
        "fn handing_over(leaves: bool, accelerated: bool) -> Kept {\n    if !process::active() {",
        "fn handing_over(leaves: bool, accelerated: bool) -> Kept {\n    if leaves || !leaves {",
        "execs or spawns"),
    "again": (
        "nothing is promoted again after exec", "sockets/src/demote.rs",
        "if conn.notes() & note::AGAIN != 0 {", "if conn.notes() & note::AGAIN == u64::MAX {",
        "test_in_memory_again"),
    "recalled": (
        "memory with recalled bytes is given back at the end", "sockets/src/close.rs",
        "discard: conn.has(flag::GREW) && !wanted &&", "discard: conn.has(flag::GREW) &&",
        "execs and much_unread"),
    "relay": (
        "what the peer sends no more has no relay", "sockets/src/demote.rs",
        "if relay::begin(conn, fd, rest) {", "if conn.has(0) && relay::begin(conn, fd, rest) {",
        "leftover"),
    "fork": (
        "connections that a child has, too, are not known to be shared", "sockets/src/fork.rs",
        "            conn.set(flag::SHARED);\n            if conn.state() == state::PROMOTED && conn.epolls",
        "            if conn.state() == state::PROMOTED && conn.epolls",
        "forks or together"),
    "dead_holders": (
        "locks of the dead stay locked", "fabric/src/lock.rs",
        "&& !thread_lives(held & !WAITERS) {", "&& !thread_lives(held & !WAITERS) && turns == 0 {",
        "holders"),
    "registrations": (
        "a child that closes a set takes its members out of the kernel's, which its parent goes on with", "sockets/src/epoll/members.rs",
        "self.drop_unregistered(guard, fd);\n                    }\n", "self.drop_member(guard, fd);\n                    }\n",
        "child_closes_set"),
    "memberships": (
        "the sets that a child closes count as its parent's", "sockets/src/epoll.rs",
        "if more {\n                        conn.epolls.fetch_add(1", "if more {\n                        conn.epolls.fetch_add(0",
        "child_closes or (threads and room_by_tcp)"),
    "pid_namespaces": (
        "connections are shared with other PID namespaces in memory", "sockets/src/fork.rs",
        "pub fn part() {\n", "pub fn part() {\n    if !process::ended() {\n        return;\n    }\n",
        "number_one"),
    "seen": (
        "connections are promoted although nobody was seen to wait for them", "sockets/src/seen.rs",
        "pub(crate) fn waits(conn: &'static Conn, fd: i32) -> bool {\n",
        "pub(crate) fn waits(conn: &'static Conn, fd: i32) -> bool {\n    if fd >= 0 {\n        return true;\n    }\n",
        "raw_waits"),
    "lost_library": (
        "the library is named where it is not", "preload/src/start.rs",
        "        Err(_) => return false,\n", "        Err(_) => {}\n",
        "test_environment"),
    "passing": (
        "connections that a message passes are not handed over", "preload/src/exec.rs",
        "if (*part).cmsg_level == libc::SOL_SOCKET &&", "if (*part).cmsg_level == -1 &&",
        "passing"),
    "stdio": (
        "libc's streams do not come to us", "preload/src/start.rs",
        "            stdio::follow();\n", "            let _ = stdio::follow;\n",
        "streams or test_lines"),
    "urgent": (
        "urgent data is no reason to go back to tcp", "sockets/src/io/send.rs",
        "if flags & libc::MSG_OOB != 0 && conn.state()", "if flags & libc::MSG_OOB == -1 && conn.state()",
        "urgent"),
    "options": (
        "options that only tcp has are the kernel's alone", "preload/src/fds.rs",
        "if interface::options::set(level, name) == What::Tcp &&", "if interface::options::set(level, name) != What::Tcp &&",
        "options or flags"),
    "options_before": (
        "what was set before the connection, or on its listener, keeps nobody on tcp", "sockets/src/rendezvous/posting.rs",
        "if interface::options::keep_on_tcp(fd) {", "if fd < 0 && interface::options::keep_on_tcp(fd) {",
        "before or of_listener"),
    "aio": (
        "what io_submit() is given stays in memory", "preload/src/aio.rs",
        "            demote::hand_over(conn, fd, Reason::Aio, false);\n", "            let _ = (demote::hand_over, conn, Reason::Aio);\n",
        "aio"),
    "liburing": (
        "what is submitted to a ring of liburing is not looked at", "preload/src/liburing.rs",
        "    if !followed {\n", "    if !followed && ring.is_null() {\n",
        "uring"),
    "rings_of_loops": (
        "event loops get their rings", "preload/src/syscall.rs",
        "libc::SYS_io_uring_setup if uring::is_for_set(", "libc::SYS_io_uring_setup if number == 0 && uring::is_for_set(",
        "of_event_loop"),
    "interrupted": (
        "calls go on after every signal", "sockets/src/signals.rs",
        "    INTERRUPT.load(Ordering::Relaxed) == 0 &&", "    INTERRUPT.load(Ordering::Relaxed) < u64::MAX &&",
        "signals"),
    "moving": (
        "handlers run while calls on a connection become ours", "sockets/src/rendezvous.rs",
        "states.1 = Some(sys::block_signals(u64::MAX));", "states.1 = None;",
        "signals and handler"),
    "jumps": (
        "what a handler jumps out of stays locked", "sockets/src/signals.rs",
        "    if EVER.load(Ordering::Relaxed) {\n",
        "    if EVER.load(Ordering::Relaxed) && target == 0 {\n",
        "signals and jumps"),
    "sleeping_reader": (
        "a reader loses the connection that another thread closes", "sockets/src/close.rs",
        "&& orphaned(conn, fd) {", "&& conn.has(0) && orphaned(conn, fd) {",
        "close_while_reading"),
    "raw_calls": (
        "close() by syscall() is not seen", "preload/src/syscall.rs",
        "            libc::SYS_close => fds::close(a as c_int).into(),\n", "",
        "raw"),
    "rules": (
        "rules decide nothing", "sockets/src/rules.rs",
        "    if count == 0 {\n", "    if count < usize::MAX {\n",
        "test_rules"),
    "reset": (
        "unread bytes in a ring reset nothing", "sockets/src/close.rs",
        "if (unread || waiting) && !conn.has(flag::BROKEN) {", "if (unread || waiting) && conn.has(flag::BROKEN) {",
        "ending"),
    "woken_writer": (
        "nobody wakes writers, and they say so", "sockets/src/io/recv.rs",
        "            && conn.theirs().armed(conn.at(TRIP), trip::TX)\n", "            && done > want\n            && conn.theirs().armed(conn.at(TRIP), trip::TX)\n",
        "big-", "sleeps in send()"),
    "woken_set": (
        "hints are set, and no bell is rung; sets say so", "sockets/src/kicks.rs",
        "        return bell::ring(fd);\n", "        return;\n",
        "epoll-", "sleeps in epoll_wait()"),
    "spinning_beside": (
        "sets spin on the processor on which their peers wait", "sockets/src/epoll/neighbours.rs",
        "        if guard.has_neighbour(here, ticks()) { here } else { NO_CPU }", "        if guard.has_neighbour(here, ticks()) { NO_CPU } else { NO_CPU }",
        "test_fair"),
    "order": (
        "the kernel is not asked each time while bytes may come by tcp, too", "sockets/src/epoll/waiting.rs",
        "let mixed = self.on_tcp.load(Ordering::Acquire) != 0 && places.len() > 1;", "let mixed = false;",
        "epoll_order"),
    "taken": (
        "a connection that another process takes by pidfd_getfd() stays in memory", "preload/src/fds.rs",
        "    if got < 0 || !process::active() || process::borrowed() {\n        return got;",
        "    if got < 0 || process::pid() != 0 || process::borrowed() {\n        return got;",
        "taking"),
    "other_ports": (
        "the ports of a relay's connection are told", "sockets/src/relay.rs",
        "                names::note(cookie, Ports", "                names::note({ let real: u64 = cookie; !real }, Ports",
        "no_namespaces"),
    "windows": (
        "who does not block leaves a window that is not acknowledged yet", "sockets/src/io/send.rs",
        "return room == 0 && !waits && stuck_for_long(conn, tx);", "return room == 0 && !waits && stuck(conn, tx);",
        "keeps_to_the_window"),
    # The doors of docs/security.md, which test_adversary.py tries: as root.
    "overflow_users": (
        "users that are not mapped are taken for known ones", "fabric/src/credentials.rs",
        "let known = uid != NO_USER && uid != self.overflow && (self.identity || uid == own);",
        "let known = uid != NO_USER || self.overflow == own && self.identity;",
        "adversary and user-namespace"),
    "lesser_ones": (
        "a process that changes its user keeps what it shares", "preload/src/rights.rs",
        "    renounce::everything(Reason::NewRights);\n", "    let _ = (renounce::everything, Reason::NewRights);\n",
        "adversary and lesser_one"),
    "proof": (
        "who says HELLO needs no end of the connection", "sockets/src/link/hello.rs",
        "if record.cookie != hello.mine || !credentials::is_of(record.uid, user) || is_shut_out(user) {",
        "if record.cookie == 0 && (!credentials::is_of(record.uid, user) || is_shut_out(user)) {",
        "adversary and has_no_end"),
    "bells_of_others": (
        "bells of other users are taken", "sockets/src/link/hello.rs",
        "let most = if User::own() == Some(user) { 1 + BELLS } else { 1 };", "let most = 1 + BELLS;",
        "adversary and bells_of_another"),
    "foreign_descriptors": (
        "whatever descriptor a peer sends is closed", "sockets/src/link/hello.rs",
        "fd >= 0 && !if index == 0 {", "fd >= 0 && index > BELLS && !if index == 0 {",
        "adversary and ones_own_file"),
    "setuid_programs": (
        "the library works in setuid programs", "preload/src/start.rs",
        "if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {", "if unsafe { libc::getauxval(libc::AT_SECURE) } == 77 {",
        "adversary and setuid_program"),
    "log_links": (
        "the log is written to where a link leads", "sockets/src/log.rs",
        "libc::O_CREAT | libc::O_NOFOLLOW", "libc::O_CREAT",
        "adversary and by_a_link"),
}

# How the library is built. `fast` where it shall not take long.
PROFILE = os.environ.get("SWITCHED_OFF_PROFILE", "release")


def run(*argv, **how):
    return subprocess.run([str(a) for a in argv], capture_output=True, text=True, **how)


def must(*argv, **how):
    done = run(*argv, **how)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, argv))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def try_without(name):
    """How many tests failed, and whether they said what they are to say."""
    _, file, old, new, tests, *says = MECHANISMS[name]
    must("git", "checkout", "-q", "--", ".", cwd=CHECKOUT)
    path = CHECKOUT / "crates" / file
    text = path.read_text()
    if text.count(old) != 1:
        sys.exit(f"{name}: found {text.count(old)} times in {file}:\n{old}")
    path.write_text(text.replace(old, new))
    must(ROOT / "scripts/cargo", "build", "-q", "--profile", PROFILE, "--locked", "-p", "preload", "-p", "shunt", cwd=CHECKOUT,
         env=os.environ | {"CARGO_TARGET_DIR": str(TARGET)})
    built = {"SHUNT_LIB": str(TARGET / PROFILE / "libshunt.so"), "SHUNT_COMMAND": str(TARGET / PROFILE / "shunt")}
    result = run(ROOT / "build/venv/bin/python", "-m", "pytest", "tests", "--ignore=tests/filters", "-q", "--modes", "shunt", "--maxfail", 3, "-k",
                 f"({tests}) and not conformance", cwd=CHECKOUT, env=os.environ | built)
    failed = re.search(r"(\d+) failed", result.stdout)
    if not failed and not re.search(r"\d+ passed", result.stdout):
        sys.exit(f"{name}: no test was run\n{result.stdout[-2000:]}{result.stderr}")
    return int(failed[1]) if failed and all(said in result.stdout for said in says) else 0


def main():
    names = sys.argv[1:] or list(MECHANISMS)
    if unknown := set(names) - set(MECHANISMS):
        sys.exit(f"no such mechanism: {', '.join(sorted(unknown))}; there are {', '.join(MECHANISMS)}")
    if not CHECKOUT.exists():
        must("git", "worktree", "prune", cwd=ROOT)
        must("git", "worktree", "add", "-q", "--detach", CHECKOUT, cwd=ROOT)
    must("git", "checkout", "-q", "--", ".", cwd=CHECKOUT)
    must("git", "checkout", "-q", "--detach", must("git", "rev-parse", "HEAD", cwd=ROOT).strip(), cwd=CHECKOUT)
    unnoticed = []
    for name in names:
        failed = try_without(name)
        print(f"{name:16} {MECHANISMS[name][0]:80} {f'{failed} failed' if failed else 'NOBODY NOTICES'}", flush=True)
        if not failed:
            unnoticed.append(name)
    must("git", "worktree", "remove", "--force", CHECKOUT, cwd=ROOT)
    sys.exit(f"no test fails without: {', '.join(unnoticed)}" if unnoticed else 0)


if __name__ == "__main__":
    main()
