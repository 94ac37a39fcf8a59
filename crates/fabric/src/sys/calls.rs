//! The system calls that the library makes: all of them, each with its purpose. `super::call`
//! takes its numbers from here, so a call that is not declared here does not compile.
//! `docs/security.md` prints this table, and a test compares the two.
//!
//! All but two are on systemd's list for services. Those two, pidfd_getfd and mincore, are made
//! only where no filter of system calls is installed. The stage `filtered` of the tests runs the
//! library where every other call kills the process.

macro_rules! calls {
    ($($name:ident: $what:literal;)*) => {
        /// Their numbers.
        #[allow(non_upper_case_globals)]
        pub mod number {
            use syscalls::Sysno;
            $(#[doc = $what] pub const $name: Sysno = Sysno::$name;)*
        }
        /// Name and purpose of each.
        pub const CALLS: &[(&str, &str)] = &[$((stringify!($name), $what),)*];
    };
}

calls! {
    accept4: "takes links that others open";
    bind: "names the rendezvous socket";
    clock_gettime: "the time; the processor time used";
    clone: "makes a relay";
    close: "of what is ours";
    close_range: "in a relay, which keeps nothing of the program";
    connect: "opens a link";
    dup3: "puts a relay's connection in a descriptor's place";
    epoll_create1: "the inner set of an epoll set";
    epoll_ctl: "its members";
    epoll_pwait: "what is pending in it";
    eventfd2: "bells";
    exit_group: "the end of a relay";
    fchmod: "the board, when it is made";
    fchmodat: "our sockets in the folder where containers meet";
    fcntl: "numbers of our descriptors, seals, flags of the program's";
    fstat: "whose file the board is, how long a configuration file is";
    fstatfs: "whether the board lies in memory";
    ftruncate: "the length of a segment";
    futex: "waits for a lock; waits for a peer, and wakes it, by a tripwire in shared memory";
    getcpu: "where a peer runs";
    getdents64: "which descriptors a process has: whether one is a ring of io_uring; of another process, whose connection the program takes (pidfd_getfd), which are homes";
    geteuid: "who we are";
    getpeername: "a connection's addresses";
    getpid: "whether this is a child of vfork()";
    getrandom: "names and tokens that nobody guesses";
    getresgid: "whether the program changes its groups";
    getresuid: "who we are, and whether that changes";
    getsockname: "a connection's addresses";
    getsockopt: "a connection's cookie, options and byte counts";
    gettid: "who holds a lock";
    ioctl: "FIONREAD, SIOCATMARK, TIOCOUTQ";
    kill: "whether a process lives (signal 0); in a relay";
    listen: "the rendezvous socket";
    lseek: "copies between a file and a connection";
    madvise: "memory that is not needed, and what core files leave out";
    memfd_create: "segments and homes";
    mincore: "whether a pointer leads to memory; never where a filter of system calls is installed";
    mlock: "mlockall() of the program, without ours";
    mlock2: "likewise";
    mlockall: "likewise";
    mmap: "maps them";
    mprotect: "jump tables of stdio";
    mremap: "puts private memory where shared memory was";
    msync: "the same where one is (MS_ASYNC writes nothing)";
    munlock: "memory of ours that the kernel has locked";
    munmap: "gives memory back";
    openat: "board, the sockets of other containers, configuration files, log";
    pidfd_getfd: "a copy of the peer's socket, for a moment; where a filter of system calls is installed only if the program has just made it itself";
    pidfd_open: "for that";
    ppoll: "waits";
    prctl: "whether a filter is installed; names a relay";
    pread64: "the board, configuration files";
    preadv2: "copies from a file without moving its offset";
    prlimit64: "limits";
    process_vm_readv: "VIPL: RDMA; what is unread of a connection that the program takes";
    process_vm_writev: "VIPL: RDMA, and probing of memory";
    pwrite64: "the board";
    read: "bells; pipes that the program splices";
    readlinkat: "the names of namespaces; whether a descriptor is a ring of io_uring";
    recvfrom: "kicks and looks at a connection";
    recvmsg: "receives on the companion; descriptors of a link";
    rt_sigprocmask: "keeps signals out of steps that belong together";
    sched_getaffinity: "how many processors there are";
    sched_getscheduler: "does not spin in a real-time thread";
    sched_yield: "lets others run";
    sendmsg: "sends on the companion; descriptors of a link";
    sendto: "kicks; netlink's sock_diag";
    setsockopt: "TCP_NODELAY of the companion, and for a moment its SO_SNDBUF; TCP_SAVE_SYN of listeners, where containers meet; what our own sockets there let in";
    shutdown: "halves of a connection";
    sigaltstack: "whether a signal handler has a stack of its own";
    socket: "rendezvous, sock_diag";
    tkill: "wakes a thread that sleeps on a closed connection";
    uname: "the kernel's version, of which rings of io_uring are known";
    unlinkat: "our sockets in the folder where containers meet";
    unshare: "in a relay: a network of its own";
    wait4: "for a relay that has begun";
    write: "bells; pipes that the program splices";
}

/// Those that systemd's `@system-service` lacks. They are made only where no filter of system calls
/// is installed.
pub const UNUSUAL: &[&str] = &["mincore", "pidfd_getfd"];

#[cfg(test)]
mod tests {
    use super::*;

    /// `docs/security.md` has a row for each, in the same order.
    #[test]
    fn the_documentation_lists_them() {
        let text = include_str!("../../../../docs/security.md");
        let rows: Vec<String> = CALLS.iter().map(|(name, what)| format!("| {name} | {what} |")).collect();
        assert!(text.contains(&rows.join("\n")), "docs/security.md is to have:\n{}", rows.join("\n"));
    }

    #[test]
    fn they_are_in_order() {
        assert!(CALLS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    /// The calls that systemd allows a service (`systemd-analyze syscall-filter @system-service`,
    /// systemd 252).
    #[test]
    fn a_service_may_make_them() {
        let allowed: Vec<&str> = include_str!("system-service.txt").lines().collect();
        for (name, _) in CALLS {
            assert!(allowed.contains(name) != UNUSUAL.contains(name), "{name}");
        }
    }
}
