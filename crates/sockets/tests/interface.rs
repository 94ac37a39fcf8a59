//! The tables against the headers of this machine: whatever those have that can reach a TCP socket
//! has a row.

use std::collections::BTreeMap;
use std::path::Path;

use sockets::interface::What::{Follow, Pass, Process, Tcp};
use sockets::interface::{calls, flags, ioctls, options};

/// Constants of a header that begin so, with their values; names that stand for other names have
/// those' values.
fn constants(header: &str, prefixes: &[&str]) -> BTreeMap<String, i64> {
    let text =
        std::fs::read_to_string(Path::new("/usr/include").join(header)).expect("linux-libc-dev is there");
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let mut word = words.next().unwrap_or_default();
        // "# define" has a space in it where it stands in a condition.
        if word == "#" {
            word = words.next().unwrap_or_default();
        }
        if word.trim_start_matches('#') != "define" {
            continue;
        }
        if let (Some(name), Some(value)) = (words.next(), words.next()) {
            found.insert(name.to_string(), value.trim_end_matches(['U', 'L']).to_string());
        }
    }
    let wanted = found.iter().filter(|(name, _)| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    wanted.filter_map(|(name, text)| Some((name.clone(), value(&found, text)?))).collect()
}

/// The number that a text of the header stands for.
fn value(found: &BTreeMap<String, String>, text: &str) -> Option<i64> {
    let mut text = text;
    for _ in 0..4 {
        let hex = text.strip_prefix("0x").map(|digits| i64::from_str_radix(digits, 16).ok());
        if let Some(number) = hex.unwrap_or_else(|| text.parse().ok()) {
            return Some(number);
        }
        text = found.get(text)?;
    }
    None
}

/// Names that begin as options do and are none: values, sizes.
const VALUES: &[&str] = &[
    "TCP_MSS_DEFAULT",
    "TCP_MSS_DESIRED",
    "TCP_REPAIR_ON",
    "TCP_REPAIR_OFF",
    "TCP_REPAIR_OFF_NO_WP",
    "TCP_MD5SIG_MAXKEYLEN",
    "TCP_MD5SIG_FLAG_*",
    "TCP_AO_MAXKEYLEN",
    "TCP_AO_KEYF_*",
    "TCP_RECEIVE_ZEROCOPY_FLAG_*",
    "IP_PMTUDISC_*",
    "IP_DEFAULT_MULTICAST_*",
    "MCAST_EXCLUDE",
    "MCAST_INCLUDE",
    "IPV6_FL_*",
    "IPV6_FLOWINFO_FLOWLABEL",
    "IPV6_FLOWINFO_PRIORITY",
    "IPV6_PRIORITY_*",
    "IPV6_TLV_*",
    "IPV6_PMTUDISC_*",
    "IPV6_PREFER_SRC_*",
];

fn is_value(name: &str) -> bool {
    VALUES.iter().any(|value| value.strip_suffix('*').map_or(name == *value, |start| name.starts_with(start)))
}

#[test]
fn every_option_of_the_headers_has_a_row() {
    let headers = [
        ("asm-generic/socket.h", libc::SOL_SOCKET, &["SO_", "SCM_"][..]),
        ("linux/tcp.h", libc::IPPROTO_TCP, &["TCP_"]),
        ("linux/in.h", libc::IPPROTO_IP, &["IP_", "MCAST_"]),
        ("linux/in6.h", libc::IPPROTO_IPV6, &["IPV6_"]),
    ];
    for (header, level, prefixes) in headers {
        let names = constants(header, prefixes);
        assert!(names.len() > 30, "{header}: {names:?}");
        for (name, number) in names.iter().filter(|(name, _)| !is_value(name)) {
            assert!(
                options::TABLE.iter().any(|row| row.level == level && i64::from(row.number) == *number),
                "{header} has {name} ({number}). Decide what is done with it, in interface/options.rs: does it change what the \
                 program or its peer sees of the connection, and can only the kernel do that? Then Tcp. If it is none: VALUES in this test."
            );
        }
    }
}

#[test]
fn the_tables_are_in_order() {
    for (index, row) in options::TABLE.iter().enumerate() {
        let twice = options::TABLE[..index]
            .iter()
            .any(|other| (other.level, other.number) == (row.level, row.number));
        assert!(!twice, "{} stands twice", row.name);
    }
    for (index, row) in ioctls::TABLE.iter().enumerate() {
        assert!(
            !ioctls::TABLE[..index].iter().any(|other| other.number == row.number),
            "{} stands twice",
            row.name
        );
    }
    for (index, row) in calls::TABLE.iter().enumerate() {
        assert!(
            !calls::TABLE[..index].iter().any(|other| other.number == row.number),
            "{} stands twice",
            row.name
        );
        assert!(row.number <= calls::LAST);
    }
    for (index, row) in flags::TABLE.iter().enumerate() {
        assert_eq!(row.bit.count_ones(), 1, "{}", row.name);
        assert!(!flags::TABLE[..index].iter().any(|other| other.bit == row.bit), "{} stands twice", row.name);
    }
}

#[test]
fn what_is_not_known_means_tcp() {
    assert_eq!(options::set(libc::SOL_SOCKET, 127), Tcp);
    assert_eq!(options::set(libc::SOL_SOCKET, 9999), Tcp);
    assert_eq!(options::got(libc::SOL_SOCKET, -1), Tcp);
    assert_eq!(options::set(282, 1), Tcp);
    assert_eq!(ioctls::of(0x1234_5678), Tcp);
    assert_eq!(calls::of(calls::LAST + 1), Tcp);
    assert_eq!(calls::of(-1), Tcp);
    assert_ne!(flags::sending_by_tcp(0x100_0000), 0);
    assert_ne!(flags::receiving_by_tcp(0x100_0000), 0);
}

#[test]
fn rows_are_found() {
    assert_eq!(options::set(libc::IPPROTO_TCP, libc::TCP_NODELAY), Follow);
    assert_eq!(options::set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT), Tcp);
    assert_eq!(options::got(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT), Pass);
    assert_eq!(options::got(libc::IPPROTO_TCP, libc::TCP_ZEROCOPY_RECEIVE), Tcp);
    assert_eq!(ioctls::of(libc::FIONREAD as u32), Follow);
    assert_eq!(ioctls::of(libc::TCGETS as u32), Pass);
    assert_eq!(calls::of(libc::SYS_getpid), Pass);
    let usual = libc::MSG_DONTWAIT
        | libc::MSG_NOSIGNAL
        | libc::MSG_PEEK
        | libc::MSG_TRUNC
        | libc::MSG_WAITALL
        | libc::MSG_MORE;
    assert_eq!(flags::sending_by_tcp(usual), 0);
    assert_eq!(flags::receiving_by_tcp(usual | libc::MSG_ERRQUEUE | libc::MSG_OOB), 0);
}

#[test]
fn harmless_values_are_known() {
    assert!(options::is_harmless(libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1));
    // The kernel takes it for the greatest number.
    assert!(!options::is_harmless(libc::SOL_SOCKET, libc::SO_RCVLOWAT, -1));
    assert!(options::is_harmless(libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, -1));
    assert!(!options::is_harmless(libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, 0));
    assert!(!options::is_harmless(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, 0));
}

#[test]
fn every_request_of_the_headers_has_a_row() {
    let headers = ["linux/sockios.h", "asm-generic/sockios.h", "asm-generic/ioctls.h"];
    for header in headers {
        for (name, number) in constants(header, &["SIOC", "FIO"]) {
            let number = number as u32;
            let family = ["SIOCDEVPRIVATE", "SIOCPROTOPRIVATE"].contains(&name.as_str());
            assert!(
                family || ioctls::TABLE.iter().any(|row| row.number == number),
                "{header} has {name}. Decide what is done with it, in interface/ioctls.rs."
            );
        }
    }
}

#[test]
fn every_flag_of_the_headers_has_a_row() {
    let header = ["x86_64-linux-gnu/bits/socket.h", "aarch64-linux-gnu/bits/socket.h", "bits/socket.h"]
        .iter()
        .find_map(|path| std::fs::read_to_string(Path::new("/usr/include").join(path)).ok())
        .expect("libc's headers are there");
    let mut seen = 0;
    for line in header.lines().map(str::trim).filter(|line| line.starts_with("MSG_")) {
        let Some((name, rest)) = line.split_once('=') else { continue };
        // Else it stands for another one.
        let Some(digits) = rest.trim().strip_prefix("0x") else { continue };
        let end = digits.find(|digit: char| !digit.is_ascii_hexdigit()).unwrap_or(digits.len());
        let bit = u32::from_str_radix(&digits[..end], 16).expect("a flag is a number") as i32;
        assert!(flags::TABLE.iter().any(|row| row.bit == bit), "decide on {name}, in interface/flags.rs");
        seen += 1;
    }
    assert!(seen > 15);
}

#[test]
fn every_call_of_the_headers_has_its_place() {
    let paths = ["x86_64-linux-gnu/asm/unistd_64.h", "asm-generic/unistd.h"];
    let header = if cfg!(target_arch = "x86_64") { paths[0] } else { paths[1] };
    let others: Vec<&str> = REACH_NO_SOCKET.split_whitespace().collect();
    let names = constants(header, &["__NR_"]);
    assert!(names.len() > 250);
    for (name, number) in names {
        let name = name.trim_start_matches("__NR_").trim_start_matches("__NR3264_");
        let row = calls::TABLE.iter().any(|row| row.number == number);
        assert!(
            row || others.contains(&name),
            "{header} has {name} ({number}). Can it take, make or change a connection? Then it gets a row in interface/calls.rs (and \
             perhaps a hook). If not: REACH_NO_SOCKET in this test. If it is newer than LAST, that goes up."
        );
        assert!(number <= calls::LAST, "{name} is newer than calls::LAST");
    }
}

/// docs/interface.md, which is made from the tables:
/// `BLESS=1 cargo test -p sockets --test interface` writes it.
#[test]
fn the_document_says_what_the_tables_say() {
    let mut text = String::from(
        "# What keeps a connection on TCP\n\n\
         A program can ask things of a socket that only the kernel can do. A connection of which it asks one goes back to TCP, or does not move, and `shunt stat` says\n\
         so. Options count too that were set before the connection was made, or on its listener, where the kernel tells of them (marked). What is in none of Shunt's tables, because it\n\
         is newer than Linux 6.18, means TCP. Made from the tables in crates/sockets/src/interface.\n\n\
         ## Socket options\n\n| option | setting it | getting it | asked for before a connection moves |\n|---|---|---|---|\n",
    );
    let way = |what| if what == Tcp { "TCP" } else { "" };
    for row in options::TABLE.iter().filter(|row| row.set == Tcp || row.got == Tcp) {
        let asked = match row.harmless {
            options::Value::Any if row.name == "SO_ATTACH_FILTER" => "yes".to_string(),
            options::Value::Any => String::new(),
            options::Value::Only(-1) => "yes; no limit is no reason".to_string(),
            options::Value::Only(only) => format!("yes; {only} is no reason"),
            options::Value::Within(_, -1) => "yes; below 0 is no reason".to_string(),
            options::Value::Within(_, most) => format!("yes; up to {most} is no reason"),
        };
        text += &format!("| {} | {} | {} | {asked} |\n", row.name, way(row.set), way(row.got));
    }
    let names = |names: Vec<&str>| names.join(", ");
    let requests = ioctls::TABLE.iter().filter(|row| row.what == Tcp).map(|row| row.name).collect();
    let sent = flags::TABLE.iter().filter(|row| row.sent == Tcp).map(|row| row.name).collect();
    let received = flags::TABLE.iter().filter(|row| row.received == Tcp).map(|row| row.name).collect();
    let process = calls::TABLE.iter().filter(|row| row.what == Process).map(|row| row.name).collect();
    text += &format!(
        "\n## The rest\n\n\
         * ioctl(): {}\n* flags of send() and its like: {}\n* flags of recv() and its like: {}\n\
         * io_submit(): the connections that it names\n\
         * calls after which no connection of the process is in memory: a ring of io_uring, but for one that an event loop makes for its epoll set, and for one of liburing to which only requests about files are given; {} (updates of maps); seccomp\n\
         * urgent data, splice(), tee(), O_ASYNC, messages with control data that are sent\n",
        names(requests),
        names(sent),
        names(received),
        names(process),
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/interface.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &text).expect("docs/ can be written to");
    }
    let stands = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stands == text, "docs/interface.md is not what the tables say; BLESS=1 writes it anew");
}

/// Calls that no descriptor of a connection is given to, and that make none.
const REACH_NO_SOCKET: &str = "
    open openat openat2 creat stat lstat mprotect munmap brk rt_sigprocmask rt_sigreturn access faccessat faccessat2 pipe pipe2 sched_yield
    mremap msync mincore madvise process_madvise shmget shmat shmctl shmdt pause nanosleep getitimer alarm setitimer getpid exit wait4 waitid
    kill tkill tgkill uname semget semop semctl semtimedop msgget msgsnd msgrcv msgctl truncate getdents getcwd chdir rename renameat renameat2
    mkdir mkdirat rmdir link linkat unlink unlinkat symlink symlinkat readlink readlinkat chmod fchmodat fchmodat2 chown lchown umask
    gettimeofday getrlimit getrusage sysinfo times ptrace getuid syslog getgid setuid setgid geteuid getegid setpgid getppid getpgrp setsid
    setreuid setregid getgroups setgroups setresuid getresuid setresgid getresgid getpgid setfsuid setfsgid getsid capget capset
    rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_tgsigqueueinfo rt_sigsuspend sigaltstack utime utimes futimesat mknod mknodat uselib
    personality ustat statfs sysfs getpriority setpriority sched_setparam sched_getparam sched_setscheduler sched_getscheduler
    sched_get_priority_max sched_get_priority_min sched_rr_get_interval sched_setaffinity sched_getaffinity sched_setattr sched_getattr
    mlock mlock2 munlock mlockall munlockall vhangup modify_ldt pivot_root _sysctl arch_prctl adjtimex setrlimit prlimit64 chroot sync acct
    settimeofday mount umount2 swapon swapoff reboot sethostname setdomainname iopl ioperm create_module init_module finit_module
    delete_module get_kernel_syms query_module quotactl quotactl_fd nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid
    setxattr lsetxattr getxattr lgetxattr listxattr llistxattr removexattr lremovexattr setxattrat getxattrat listxattrat removexattrat
    time futex futex_waitv futex_wake futex_wait futex_requeue set_thread_area get_thread_area lookup_dcookie epoll_ctl_old epoll_wait_old
    remap_file_pages set_tid_address restart_syscall timer_create timer_settime timer_gettime timer_getoverrun timer_delete
    clock_settime clock_gettime clock_getres clock_nanosleep clock_adjtime vserver mbind set_mempolicy get_mempolicy
    set_mempolicy_home_node migrate_pages move_pages mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load
    kexec_file_load add_key request_key keyctl ioprio_set ioprio_get inotify_init inotify_init1 inotify_add_watch inotify_rm_watch
    set_robust_list get_robust_list signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime eventfd eventfd2
    perf_event_open fanotify_init fanotify_mark name_to_handle_at open_by_handle_at getcpu process_vm_readv process_vm_writev getrandom
    memfd_create memfd_secret userfaultfd membarrier pkey_mprotect pkey_alloc pkey_free rseq pidfd_send_signal pidfd_open
    process_mrelease open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr statmount listmount
    landlock_create_ruleset landlock_add_rule landlock_restrict_self map_shadow_stack mseal lsm_get_self_attr lsm_set_self_attr
    lsm_list_modules file_getattr file_setattr uretprobe uprobe
";
