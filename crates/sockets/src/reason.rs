//! Why a connection is on tcp. Each is counted per process and shown per connection by
//! `shunt stat`: never a silent fallback.

macro_rules! reasons {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        /// The codes, as they stand in shared memory.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Reason { $(#[doc = $text] $name = $code,)* }
        /// The texts, by code.
        pub const NAMES: &[&str] = &[$($text),*];

        impl Reason {
            /// The reason in words.
            pub fn text(self) -> &'static str {
                NAMES[self as usize]
            }

            /// The one with this code, but for [`Reason::None`].
            pub fn of(code: u32) -> Option<Reason> {
                [$(Reason::$name),*].get(code as usize).copied().filter(|&reason| reason != Reason::None)
            }
        }
    };
}

reasons! {
    None = 0, "none";
    Young = 1, "too few calls yet";
    Unpaired = 2, "the other end is not known to Shunt";
    Linking = 3, "link being made";
    Offered = 4, "waiting for the other end's answer";
    Disabled = 5, "switched off (path = tcp)";
    NoBoard = 6, "board not usable";
    NoListener = 7, "no rendezvous socket";
    NoMemory = 8, "no memory for a link";
    NoDescriptors = 9, "no descriptors left";
    Unproved = 10, "the kernel does not confirm the other end (sock_diag)";
    OtherVersion = 11, "the other end runs another version of Shunt";
    Refused = 12, "the other end refused";
    Busy = 13, "a call is in progress on tcp";
    Exec = 14, "crossed exec or spawn";
    Passed = 15, "descriptor passed to another process";
    Stdio = 16, "used as a stdio stream";
    Urgent = 17, "urgent data";
    Option = 18, "socket option that only tcp has";
    Splice = 19, "splice or tee";
    IoUring = 20, "io_uring in this process";
    Stalled = 21, "the reader stalled with a full ring";
    PeerAsked = 22, "the other end went back to tcp";
    PeerGone = 23, "the other end has closed";
    Broken = 24, "the other end broke the protocol";
    TableFull = 25, "descriptor or connection table full";
    Counting = 26, "the kernel's byte counts do not agree";
    NotTcp = 27, "not an internet stream socket";
    LinkLimit = 28, "too many links";
    Async = 29, "signal-driven input and output";
    RawCall = 30, "system call that is not followed";
    Half = 31, "half closed";
    Shared = 32, "shared with another process before promotion";
    Duplicated = 33, "one of several descriptors closed while in an epoll set";
    Rare = 34, "used too seldom to gain by it";
    Rule = 35, "a rule says tcp";
    BadRules = 36, "the rules are wrong (shunt doctor says where)";
    DeepBind = 37, "a library takes libc's functions past us: loaded with RTLD_DEEPBIND, or with a libc of its own";
    Sandboxed = 38, "the process has locked itself in (seccomp)";
    Forked = 39, "between hosts, and its process has forked";
    LinkOver = 40, "the link between the hosts is over";
    NotIntroduced = 41, "the agents do not introduce the other end";
    PidNamespace = 42, "shared with a process of another PID namespace";
    Unseen = 43, "the program was not seen to wait for it";
    EmptyEnvironment = 44, "program started with an empty environment";
    LibraryLost = 45, "program started where the library is not there (chroot)";
    Nobody = 46, "the process has several users at once, or one that is not mapped";
    NewRights = 47, "the process has changed its user or its rights";
    Aio = 48, "used by io_submit() (linux-aio)";
    Taken = 49, "taken by another process (pidfd_getfd)";
    OtherPorts = 50, "goes on by a relay to which the kernel has given other ports";
    NoGain = 51, "memory gains nothing here";
    PeerUnseen = 52, "the other end's program was not seen to wait for it";
}
