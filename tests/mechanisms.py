"""The mechanisms of the library that tests/switched_off.py switches off, one after the other: a place of the source each, what stands there
instead, and the tests that must fail then (places.py looks for them).

Whoever moves or changes such a place changes its entry: scripts/check-habits.sh looks whether each is found. What is switched off must stay
the same mechanism; if there is no such mechanism any more, the entry goes.
"""

from typing import NamedTuple


class Mechanism(NamedTuple):
    #: What does not happen, or happens instead.
    without: str
    #: Below crates/.
    file: str
    #: What stands there, once.
    old: str
    new: str
    #: Which tests fail then: pytest -k.
    tests: str
    #: What a failure says, if it matters.
    says: str = ""
    #: In which mode they run.
    mode: str = "shunt"


MECHANISMS = {
    "exec": Mechanism(
        "connections that cross exec and spawn are not handed over", "preload/src/exec.rs",
        "fn handing_over(leaves: bool, accelerated: bool) -> Kept { if !process::active() {",
        "fn handing_over(leaves: bool, accelerated: bool) -> Kept { if leaves || !leaves {",
        "execs or spawns"),
    "again": Mechanism(
        "nothing is promoted again after exec", "sockets/src/demote.rs",
        "again: conn.notes() & note::AGAIN != 0 || for_now,",
        "again: conn.notes() & note::AGAIN == u64::MAX || for_now,",
        "test_in_memory_again"),
    "recalled": Mechanism(
        "memory with recalled bytes is given back at the end", "sockets/src/link/former.rs",
        "discard: grew && !wanted &&",
        "discard: grew &&",
        "execs and much_unread"),
    "relay": Mechanism(
        "what the peer sends no more has no relay", "sockets/src/relay.rs",
        "if begin(conn, fd, rest) {",
        "if conn.has(0) && begin(conn, fd, rest) {",
        "leftover"),
    "fork": Mechanism(
        "connections that a child has, too, are not known to be shared", "sockets/src/fork.rs",
        "conn.set(flag::SHARED); if conn.state() == state::PROMOTED && conn.epolls",
        "if conn.state() == state::PROMOTED && conn.epolls",
        "forks or together"),
    "dead_holders": Mechanism(
        "locks of the dead stay locked", "fabric/src/lock.rs",
        "&& !thread_lives(held & !WAITERS) {",
        "&& !thread_lives(held & !WAITERS) && turns == 0 {",
        "holders"),
    "registrations": Mechanism(
        "a child that closes a set takes its members out of the kernel's, which its parent goes on with", "sockets/src/epoll/members.rs",
        "self.drop_unregistered(guard, fd); } } }",
        "self.drop_member(guard, fd); } } }",
        "child_closes_set"),
    "memberships": Mechanism(
        "the sets that a child closes count as its parent's", "sockets/src/epoll/sets.rs",
        "if more { conn.epolls.fetch_add(1",
        "if more { conn.epolls.fetch_add(0",
        "child_closes or (threads and room_by_tcp)"),
    "pid_namespaces": Mechanism(
        "connections are shared with other PID namespaces in memory", "sockets/src/fork.rs",
        "pub fn part() {",
        "pub fn part() { if !process::ended() { return; }",
        "number_one"),
    "seen": Mechanism(
        "connections are promoted although nobody was seen to wait for them", "sockets/src/seen.rs",
        "pub(crate) fn waits(conn: &'static Conn, fd: i32) -> bool {",
        "pub(crate) fn waits(conn: &'static Conn, fd: i32) -> bool { if fd >= 0 { return true; }",
        "raw_waits"),
    "lost_library": Mechanism(
        "the library is named where it is not", "preload/src/inherited.rs",
        "Err(_) => return false,",
        "Err(_) => {}",
        "test_environment"),
    "passing": Mechanism(
        "connections that a message passes are not handed over", "preload/src/passed.rs",
        "if (*part).cmsg_level == libc::SOL_SOCKET &&",
        "if (*part).cmsg_level == -1 &&",
        "passing"),
    "stdio": Mechanism(
        "libc's streams do not come to us", "preload/src/start.rs",
        "lifecycle::at_first(stdio::follow);",
        "let _ = (lifecycle::at_first, stdio::follow);",
        "streams or test_lines"),
    "urgent": Mechanism(
        "urgent data is no reason to go back to tcp", "sockets/src/io/send.rs",
        "if flags & libc::MSG_OOB != 0 && conn.state()",
        "if flags & libc::MSG_OOB == -1 && conn.state()",
        "urgent"),
    "options": Mechanism(
        "options that only tcp has are the kernel's alone", "preload/src/fds.rs",
        "if interface::options::set(level, name) == What::Tcp &&",
        "if interface::options::set(level, name) != What::Tcp &&",
        "options or flags"),
    "options_before": Mechanism(
        "what was set before the connection, or on its listener, keeps nobody on tcp", "sockets/src/rendezvous/posting.rs",
        "if interface::options::keep_on_tcp(fd) {",
        "if fd < 0 && interface::options::keep_on_tcp(fd) {",
        "before or of_listener"),
    "aio": Mechanism(
        "what io_submit() is given stays in memory", "preload/src/aio.rs",
        "relay::hand_over(conn, fd, Reason::Aio, false);",
        "let _ = (relay::hand_over, conn, Reason::Aio);",
        "aio"),
    "liburing": Mechanism(
        "what is submitted to a ring of liburing is not looked at", "preload/src/liburing.rs",
        "if !followed {",
        "if !followed && ring.is_null() {",
        "uring"),
    "rings_of_loops": Mechanism(
        "event loops get their rings", "preload/src/syscall.rs",
        "libc::SYS_io_uring_setup if uring::is_for_set(",
        "libc::SYS_io_uring_setup if number == 0 && uring::is_for_set(",
        "of_event_loop"),
    "interrupted": Mechanism(
        "calls go on after every signal", "sockets/src/signals.rs",
        "INTERRUPT.load(Ordering::Relaxed) == 0 &&",
        "INTERRUPT.load(Ordering::Relaxed) < u64::MAX &&",
        "signals"),
    "between_sleeps": Mechanism(
        "signals are handled between two sleeps of one call", "sockets/src/signals.rs",
        "if self.blocked.is_some() || !have_been_handled() || part == Some(0) {",
        "if part != Some(u64::MAX) {",
        "between_two_sleeps"),
    "handlers_counted": Mechanism(
        "a handler that has run before a sleep does not end it", "sockets/src/signals.rs",
        "if handlers_run().0 != self.run {",
        "if self.run == u32::MAX {",
        "behind_the_first_sleep"),
    "moving": Mechanism(
        "handlers run while calls on a connection become ours", "sockets/src/rendezvous/agreement.rs",
        "states._blocked = Some(Blocked::all());",
        "states._blocked = None;",
        "signals and handler"),
    "jumps": Mechanism(
        "what a handler jumps out of stays locked", "sockets/src/jumps.rs",
        "if signals::have_been_handled() {",
        "if signals::have_been_handled() && target == 0 {",
        "signals and jumps"),
    "sleeping_reader": Mechanism(
        "a reader loses the connection that another thread closes", "sockets/src/close.rs",
        "&& orphaned(conn, fd) {",
        "&& conn.has(0) && orphaned(conn, fd) {",
        "close_while_reading"),
    "raw_calls": Mechanism(
        "close() by syscall() is not seen", "preload/src/syscall.rs",
        "libc::SYS_close => fds::close(a as c_int).into(),",
        "",
        "raw"),
    "rules": Mechanism(
        "rules decide nothing", "sockets/src/rules.rs",
        "if count == 0 {",
        "if count < usize::MAX {",
        "test_rules"),
    "reset": Mechanism(
        "unread bytes in a ring reset nothing", "sockets/src/path/closing.rs",
        "_ if unread && !self.broken => End::Reset,",
        "_ if unread && self.broken => End::Reset,",
        "ending"),
    "woken_writer": Mechanism(
        "nobody wakes writers, and they say so", "sockets/src/io/recv.rs",
        "} else if path::is_ring(conn.rx.path()) && conn.theirs().armed(conn.at(TRIP), trip::TX) {",
        "} else if fd < 0 && conn.theirs().armed(conn.at(TRIP), trip::TX) {",
        "big-", "sleeps in send()"),
    "woken_set": Mechanism(
        "hints are set, and no bell is rung; sets say so", "sockets/src/wake/fire.rs",
        "&& link.ring(bell)",
        "&& bell >= 0",
        "epoll-", "sleeps in epoll_wait()"),
    "spinning_beside": Mechanism(
        "sets spin on the processor on which their peers wait", "sockets/src/epoll/neighbours.rs",
        "if guard.has_neighbour(here, ticks()) { here } else { NO_CPU }",
        "if guard.has_neighbour(here, ticks()) { NO_CPU } else { NO_CPU }",
        "test_fair"),
    "order": Mechanism(
        "the kernel is not asked each time while bytes may come by tcp, too", "sockets/src/epoll/waiting.rs",
        "let mixed = self.on_tcp.load(Ordering::Acquire) != 0 && places.len() > 1;",
        "let mixed = false;",
        "epoll_order"),
    "taken": Mechanism(
        "a connection that another process takes by pidfd_getfd() stays in memory", "preload/src/fds.rs",
        "if got < 0 || !process::active() || process::borrowed() { return got;",
        "if got < 0 || process::pid() != 0 || process::borrowed() { return got;",
        "taking"),
    "other_ports": Mechanism(
        "the ports of a relay's connection are told", "sockets/src/relay.rs",
        "names::note(cookie, Ports",
        "names::note({ let real: u64 = cookie; !real }, Ports",
        "no_namespaces"),
    "windows": Mechanism(
        "who does not block leaves a window that is not acknowledged yet", "sockets/src/io/send.rs",
        "return room == 0 && !waits(conn, flags) && stuck_for_long(conn, tx);",
        "return room == 0 && !waits(conn, flags) && crate::path::room::stuck(conn, tx);",
        "keeps_to_the_window"),
    "deep_slots": Mechanism(
        "libraries that are loaded with RTLD_DEEPBIND keep libc's functions", "preload/src/binding.rs",
        "if [next, found].contains(&function) { return Slot::Past; }",
        "if [next, found].contains(&function) { return Slot::Stays; }",
        "libraries and deep"),
    "deep_unbound": Mechanism(
        "what such a library binds when it first calls is bound to libc", "preload/src/binding.rs",
        "return if seen == ours { Slot::Past }",
        "return if seen == ours { Slot::Stays }",
        "libraries and deep"),
    "deep_barred": Mechanism(
        "connections move to memory while such a library is loaded", "preload/src/deep.rs",
        "process::bar_for_now(); uring::give_back(Reason::DeepBind);",
        "process::bar_for_now();",
        "libraries and deep"),
    "short_lives": Mechanism(
        "connections that have ended soon after their move are moved as early the next time", "sockets/src/worth.rs",
        "if paid { now / 2 } else { now * 2 };",
        "if paid { now / 2 } else { now };",
        "moves_have_not_paid"),
    "learnt_at_exit": Mechanism(
        "connections of processes that end without closing them do not count for the next", "preload/src/end.rs",
        "worth::ended(conn);",
        "let _ = worth::ended;",
        "learns_from_its_children"),
    "quick_peers": Mechanism(
        "answers that are there at once do not count for a move", "sockets/src/worth.rs",
        "waits.max(count(&counters.writes).min(got))",
        "waits.max(count(&counters.writes).min(0))",
        "peer_is_quick"),
    "long_lives": Mechanism(
        "it is not learnt which connections live long", "sockets/src/worth.rs",
        "let next = if paid { now / 2 }",
        "let next = if paid { now }",
        "they_come_earlier"),
    "much_by_few_calls": Mechanism(
        "what is carried by few calls stays on tcp", "sockets/src/worth.rs",
        "is_ok_and(|bytes| bytes >= BYTES)",
        "is_ok_and(|bytes| bytes == BYTES)",
        "carry_much"),
    # The doors of docs/security.md, which test_adversary.py tries: as root.
    "overflow_users": Mechanism(
        "users that are not mapped are taken for known ones", "fabric/src/credentials.rs",
        "let known = !nobody && (self.identity || uid == own());",
        "let known = (uid != NO_USER || self.overflow == own() && self.identity) | nobody;",
        "adversary and user-namespace"),
    "lesser_ones": Mechanism(
        "a process that changes its user keeps what it shares", "preload/src/rights.rs",
        "renounce::everything(Reason::NewRights);",
        "let _ = (renounce::everything, Reason::NewRights);",
        "adversary and lesser_one"),
    "proof": Mechanism(
        "who says HELLO needs no end of the connection", "sockets/src/rendezvous/hello.rs",
        "if record.cookie != mine || !credentials::is_of(record.uid, user) || is_shut_out(user) {",
        "if record.cookie == 0 && (!credentials::is_of(record.uid, user) || is_shut_out(user)) {",
        "adversary and has_no_end"),
    "bells_of_others": Mechanism(
        "bells of other users are taken", "sockets/src/rendezvous/hello.rs",
        "let most = if User::own() == Some(user) { 1 + FIRST_BELLS } else { 1 };",
        "let most = 1 + FIRST_BELLS;",
        "adversary and bells_of_another"),
    "late_bells_of_others": Mechanism(
        "bells of other users are taken after the hand-shake", "sockets/src/link/passing.rs",
        "user.filter(|&user| User::own() == Some(user) && self.serves())",
        "user.filter(|_| self.serves())",
        "adversary and passed_later"),
    "foreign_descriptors": Mechanism(
        "whatever descriptor a peer sends is closed", "sockets/src/link/passing.rs",
        "fd >= 0 && !(index < most && is_right(index, fd));",
        "fd >= 0 && false && !(index < most && is_right(index, fd));",
        "adversary and ones_own_file"),
    "setuid_programs": Mechanism(
        "the library works in setuid programs", "preload/src/start.rs",
        "if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {",
        "if unsafe { libc::getauxval(libc::AT_SECURE) } == 77 {",
        "adversary and setuid_program"),
    "log_links": Mechanism(
        "the log is written to where a link leads", "sockets/src/log.rs",
        "libc::O_CREAT | libc::O_NOFOLLOW",
        "libc::O_CREAT",
        "adversary and by_a_link"),
    "loud": Mechanism(
        "who may not be passed a bell, as another user's, is woken by a kick", "sockets/src/rendezvous/hello.rs",
        "(_, false) => bells::loud(),",
        "(_, false) => None,",
        "threads_wake_without_tcp", mode="users"),
    "gain": Mechanism(
        "what takes a kick for each message stays in memory", "sockets/src/gain.rs",
        "if !is_doubtful(before, now) {",
        "if !is_doubtful(before, now) || conn.is_managed() {",
        "goes_back or comes_back"),
}
