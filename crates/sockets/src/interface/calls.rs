//! System calls, as programs make them by syscall(). Those that have a hook go there; here is what
//! is done with the others that can reach a connection, and with those that we have never heard of.

use super::What::{self, Follow, Pass, Process, Tcp};

/// A system call that can reach a connection. What is not here reaches none, if it is older than
/// `LAST`.
pub struct Row {
    pub number: i64,
    pub name: &'static str,
    pub what: What,
}

/// The last number that Linux 6.18 has.
pub const LAST: i64 = 469;

/// What is done with a call that has no hook.
pub fn of(number: i64) -> What {
    WHAT.get(number as usize).copied().unwrap_or(Tcp)
}

static WHAT: [What; LAST as usize + 1] = {
    let mut all = [Pass; LAST as usize + 1];
    let mut index = 0;
    while index < TABLE.len() {
        all[TABLE[index].number as usize] = TABLE[index].what;
        index += 1;
    }
    all
};

macro_rules! rows {
    ($($what:ident: $($(#[$attr:meta])* $name:ident $(= $number:literal)?)*;)*) => {
        /// Every call that takes, makes or changes what may be a connection.
        pub static TABLE: &[Row] = &[$($($(#[$attr])* Row {
            number: rows!(@number $name $($number)?), name: stringify!($name), what: $what
        },)*)*];
    };
    (@number $name:ident $number:literal) => { $number };
    (@number $name:ident) => { libc::$name };
}

rows! {
    // They have hooks, to which syscall() goes.
    Follow:
        SYS_read SYS_write SYS_readv SYS_writev SYS_preadv2 SYS_pwritev2 SYS_recvfrom SYS_sendto SYS_recvmsg SYS_sendmsg
        SYS_recvmmsg SYS_sendmmsg SYS_sendfile SYS_splice SYS_tee SYS_vmsplice SYS_copy_file_range SYS_connect SYS_accept
        SYS_accept4 SYS_setsockopt SYS_getsockopt SYS_ioctl SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2
        SYS_pselect6 SYS_ppoll SYS_close SYS_close_range SYS_dup SYS_dup3 SYS_fcntl SYS_shutdown SYS_execve SYS_execveat
        SYS_clone SYS_clone3 SYS_prctl SYS_seccomp SYS_exit_group SYS_rt_sigaction SYS_getsockname SYS_getpeername SYS_io_submit SYS_pidfd_getfd SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register
        #[cfg(target_arch = "x86_64")] SYS_epoll_create
        #[cfg(target_arch = "x86_64")] SYS_epoll_wait
        #[cfg(target_arch = "x86_64")] SYS_poll
        #[cfg(target_arch = "x86_64")] SYS_select
        #[cfg(target_arch = "x86_64")] SYS_dup2
        #[cfg(target_arch = "x86_64")] SYS_fork;
    // The companion answers, or it is about what is no connection yet, or it fails on sockets; a
    // child of vfork() goes on in execve().
    Pass:
        SYS_socket SYS_socketpair SYS_bind SYS_listen
        SYS_fstat SYS_newfstatat SYS_statx SYS_fstatfs SYS_fchmod SYS_fchown SYS_fchownat SYS_utimensat
        SYS_fgetxattr SYS_fsetxattr SYS_flistxattr SYS_fremovexattr
        SYS_lseek SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_fsync SYS_fdatasync SYS_sync_file_range SYS_syncfs
        SYS_ftruncate SYS_fallocate SYS_fadvise64 SYS_readahead SYS_flock SYS_getdents64 SYS_fchdir
        SYS_io_setup SYS_io_destroy SYS_io_getevents SYS_io_cancel
        SYS_mmap SYS_kcmp SYS_unshare SYS_setns
        #[cfg(target_arch = "x86_64")] SYS_vfork
        #[cfg(target_arch = "x86_64")] io_pgetevents = 333
        #[cfg(target_arch = "aarch64")] io_pgetevents = 292
        cachestat = 451;
    // What it puts in a map (BPF_MAP_UPDATE_ELEM) may be a connection, whose bytes a program in the
    // kernel sees from then on.
    Process:
        SYS_bpf;
}
