//! Socket options: what is done when one is set, when one is got, and, as it may have been set
//! before the connection was made, by another process, or on the listener, which values of it keep
//! a connection on tcp. Those are asked of the kernel when an end is posted.

use fabric::sys;

use super::What::{self, Follow, Pass, Tcp};

/// A socket option.
pub struct Row {
    pub level: i32,
    pub number: i32,
    pub name: &'static str,
    pub set: What,
    pub got: What,
    /// What the kernel says of it where it does not keep a connection on tcp.
    pub harmless: Value,
}

/// The values of an option, as integers.
#[derive(Clone, Copy)]
pub enum Value {
    /// Either none keeps one on tcp, or the kernel cannot be asked.
    Any,
    Only(i32),
    /// From here to there.
    Within(i32, i32),
}

use Value::{Any, Only, Within};

/// What is done when a program sets an option.
pub fn set(level: i32, number: i32) -> What {
    row(level, number).map_or(Tcp, |row| row.set)
}

/// What is done when a program asks for an option.
pub fn got(level: i32, number: i32) -> What {
    row(level, number).map_or(Tcp, |row| row.got)
}

/// Whether this value of an option is known to keep no connection on tcp.
pub fn is_harmless(level: i32, number: i32, value: i32) -> bool {
    row(level, number).is_some_and(|row| row.harmless.admits(value))
}

impl Value {
    fn admits(self, value: i32) -> bool {
        match self {
            Any => false,
            Only(only) => value == only,
            Within(least, most) => (least..=most).contains(&value),
        }
    }
}

/// Whether an option is set on a socket that a ring cannot follow.
pub fn keep_on_tcp(fd: i32) -> bool {
    let asked = TABLE.iter().filter(|row| !matches!(row.harmless, Any));
    let kept = |row: &Row| {
        sys::getsockopt(fd, row.level, row.number).is_ok_and(|value: i32| !row.harmless.admits(value))
    };
    asked.into_iter().any(kept) || sys::has_filter(fd)
}

fn row(level: i32, number: i32) -> Option<&'static Row> {
    let level = LEVELS.iter().position(|&known| known == level)?;
    match INDEX[level].get(number as usize)? {
        0 => None,
        place => TABLE.get(*place as usize - 1),
    }
}

const LEVELS: [i32; 4] = [libc::SOL_SOCKET, libc::IPPROTO_TCP, libc::IPPROTO_IP, libc::IPPROTO_IPV6];

/// Places in the table, +1, by level and number: programs ask for options often.
static INDEX: [[u16; 128]; LEVELS.len()] = {
    let mut all = [[0; 128]; LEVELS.len()];
    let mut place = 0;
    while place < TABLE.len() {
        let mut level = 0;
        while LEVELS[level] != TABLE[place].level {
            level += 1;
        }
        all[level][TABLE[place].number as usize] = place as u16 + 1;
        place += 1;
    }
    all
};

macro_rules! table {
    ($($level:ident { $($name:literal $number:literal $set:ident $got:ident $harmless:expr;)* })*) => {
        /// Every option of the levels that a TCP socket has.
        pub static TABLE: &[Row] = &[$($(Row {
            level: libc::$level, number: $number, name: $name, set: $set, got: $got, harmless: $harmless
        }),*),*];
    };
}

// name, number, what is done when it is set, and got, and which values do not keep a connection on
// tcp.
table! {
    SOL_SOCKET {
        "SO_DEBUG" 1 Pass Pass Any;
        "SO_REUSEADDR" 2 Pass Pass Any;
        "SO_TYPE" 3 Pass Pass Any;
        "SO_ERROR" 4 Pass Pass Any;
        "SO_DONTROUTE" 5 Pass Pass Any;
        "SO_BROADCAST" 6 Pass Pass Any;
        // Small buffers keep rings small (small_buffers.rs).
        "SO_SNDBUF" 7 Follow Pass Any;
        "SO_RCVBUF" 8 Follow Pass Any;
        "SO_SNDBUFFORCE" 32 Follow Pass Any;
        "SO_RCVBUFFORCE" 33 Follow Pass Any;
        "SO_KEEPALIVE" 9 Pass Pass Any;
        "SO_OOBINLINE" 10 Pass Pass Any;
        "SO_NO_CHECK" 11 Pass Pass Any;
        "SO_PRIORITY" 12 Pass Pass Any;
        "SO_LINGER" 13 Follow Pass Any;
        "SO_BSDCOMPAT" 14 Pass Pass Any;
        "SO_REUSEPORT" 15 Pass Pass Any;
        "SO_PASSCRED" 16 Pass Pass Any;
        "SO_PEERCRED" 17 Pass Pass Any;
        "SO_RCVLOWAT" 18 Tcp Pass Within(0, 1);
        "SO_SNDLOWAT" 19 Pass Pass Any;
        // Waits of ours ask the kernel for these.
        "SO_RCVTIMEO_OLD" 20 Follow Pass Any;
        "SO_SNDTIMEO_OLD" 21 Follow Pass Any;
        "SO_SECURITY_AUTHENTICATION" 22 Pass Pass Any;
        "SO_SECURITY_ENCRYPTION_TRANSPORT" 23 Pass Pass Any;
        "SO_SECURITY_ENCRYPTION_NETWORK" 24 Pass Pass Any;
        // From now on packets may have no way.
        "SO_BINDTODEVICE" 25 Tcp Pass Any;
        // Which filters there are already, `sys::has_filter` tells. The number is also
        // SO_GET_FILTER.
        "SO_ATTACH_FILTER" 26 Tcp Pass Any;
        "SO_DETACH_FILTER" 27 Pass Pass Any;
        "SO_PEERNAME" 28 Pass Pass Any;
        "SO_TIMESTAMP_OLD" 29 Tcp Pass Only(0);
        "SO_ACCEPTCONN" 30 Pass Pass Any;
        "SO_PEERSEC" 31 Pass Pass Any;
        "SO_PASSSEC" 34 Pass Pass Any;
        "SO_TIMESTAMPNS_OLD" 35 Tcp Pass Only(0);
        "SO_MARK" 36 Pass Pass Any;
        "SO_TIMESTAMPING_OLD" 37 Tcp Pass Only(0);
        "SO_PROTOCOL" 38 Pass Pass Any;
        "SO_DOMAIN" 39 Pass Pass Any;
        "SO_RXQ_OVFL" 40 Pass Pass Any;
        "SO_WIFI_STATUS" 41 Tcp Pass Only(0);
        "SO_PEEK_OFF" 42 Tcp Pass Within(i32::MIN, -1);
        "SO_NOFCS" 43 Pass Pass Any;
        "SO_LOCK_FILTER" 44 Pass Pass Any;
        "SO_SELECT_ERR_QUEUE" 45 Pass Pass Any;
        "SO_BUSY_POLL" 46 Pass Pass Any;
        // Without a limit it is all ones.
        "SO_MAX_PACING_RATE" 47 Tcp Pass Only(-1);
        "SO_BPF_EXTENSIONS" 48 Pass Pass Any;
        "SO_INCOMING_CPU" 49 Pass Pass Any;
        "SO_ATTACH_BPF" 50 Tcp Pass Any;
        "SO_ATTACH_REUSEPORT_CBPF" 51 Pass Pass Any;
        "SO_ATTACH_REUSEPORT_EBPF" 52 Pass Pass Any;
        "SO_CNX_ADVICE" 53 Pass Pass Any;
        "SCM_TIMESTAMPING_OPT_STATS" 54 Pass Pass Any;
        "SO_MEMINFO" 55 Pass Pass Any;
        "SO_INCOMING_NAPI_ID" 56 Pass Pass Any;
        "SO_COOKIE" 57 Pass Pass Any;
        "SCM_TIMESTAMPING_PKTINFO" 58 Pass Pass Any;
        "SO_PEERGROUPS" 59 Pass Pass Any;
        "SO_ZEROCOPY" 60 Tcp Pass Only(0);
        "SO_TXTIME" 61 Tcp Pass Any;
        "SO_BINDTOIFINDEX" 62 Tcp Pass Any;
        "SO_TIMESTAMP_NEW" 63 Tcp Pass Only(0);
        "SO_TIMESTAMPNS_NEW" 64 Tcp Pass Only(0);
        "SO_TIMESTAMPING_NEW" 65 Tcp Pass Only(0);
        "SO_RCVTIMEO_NEW" 66 Follow Pass Any;
        "SO_SNDTIMEO_NEW" 67 Follow Pass Any;
        "SO_DETACH_REUSEPORT_BPF" 68 Pass Pass Any;
        "SO_PREFER_BUSY_POLL" 69 Pass Pass Any;
        "SO_BUSY_POLL_BUDGET" 70 Pass Pass Any;
        "SO_NETNS_COOKIE" 71 Pass Pass Any;
        "SO_BUF_LOCK" 72 Pass Pass Any;
        "SO_RESERVE_MEM" 73 Pass Pass Any;
        "SO_TXREHASH" 74 Pass Pass Any;
        "SO_RCVMARK" 75 Pass Pass Any;
        "SO_PASSPIDFD" 76 Pass Pass Any;
        "SO_PEERPIDFD" 77 Pass Pass Any;
        "SO_DEVMEM_LINEAR" 78 Tcp Tcp Any;
        "SO_DEVMEM_DMABUF" 79 Tcp Tcp Any;
        "SO_DEVMEM_DONTNEED" 80 Tcp Tcp Any;
        "SCM_TS_OPT_ID" 81 Pass Pass Any;
        "SO_RCVPRIORITY" 82 Pass Pass Any;
        "SO_PASSRIGHTS" 83 Pass Pass Any;
        "SO_INQ" 84 Tcp Pass Only(0);
    }
    IPPROTO_TCP {
        "TCP_NODELAY" 1 Follow Follow Any;
        "TCP_MAXSEG" 2 Pass Pass Any;
        "TCP_CORK" 3 Follow Follow Any;
        "TCP_KEEPIDLE" 4 Pass Pass Any;
        "TCP_KEEPINTVL" 5 Pass Pass Any;
        "TCP_KEEPCNT" 6 Pass Pass Any;
        "TCP_SYNCNT" 7 Pass Pass Any;
        "TCP_LINGER2" 8 Pass Pass Any;
        "TCP_DEFER_ACCEPT" 9 Pass Pass Any;
        "TCP_WINDOW_CLAMP" 10 Pass Pass Any;
        "TCP_INFO" 11 Pass Pass Any;
        "TCP_QUICKACK" 12 Pass Pass Any;
        "TCP_CONGESTION" 13 Pass Pass Any;
        "TCP_MD5SIG" 14 Tcp Tcp Any;
        // No kernel has had it since Linux 3.10, but the headers of libc do.
        "TCP_COOKIE_TRANSACTIONS" 15 Pass Pass Any;
        "TCP_THIN_LINEAR_TIMEOUTS" 16 Pass Pass Any;
        "TCP_THIN_DUPACK" 17 Pass Pass Any;
        // It ends a connection whose peer reads nothing.
        "TCP_USER_TIMEOUT" 18 Tcp Pass Only(0);
        "TCP_REPAIR" 19 Tcp Pass Only(0);
        "TCP_REPAIR_QUEUE" 20 Tcp Tcp Any;
        "TCP_QUEUE_SEQ" 21 Tcp Tcp Any;
        "TCP_REPAIR_OPTIONS" 22 Tcp Tcp Any;
        "TCP_FASTOPEN" 23 Pass Pass Any;
        "TCP_TIMESTAMP" 24 Pass Pass Any;
        "TCP_NOTSENT_LOWAT" 25 Pass Pass Any;
        "TCP_CC_INFO" 26 Pass Pass Any;
        "TCP_SAVE_SYN" 27 Pass Pass Any;
        "TCP_SAVED_SYN" 28 Pass Pass Any;
        "TCP_REPAIR_WINDOW" 29 Tcp Tcp Any;
        "TCP_FASTOPEN_CONNECT" 30 Pass Pass Any;
        // The name of a layer; none is no name.
        "TCP_ULP" 31 Tcp Pass Only(0);
        "TCP_MD5SIG_EXT" 32 Tcp Tcp Any;
        "TCP_FASTOPEN_KEY" 33 Pass Pass Any;
        "TCP_FASTOPEN_NO_COOKIE" 34 Pass Pass Any;
        // What is got by it is the bytes themselves.
        "TCP_ZEROCOPY_RECEIVE" 35 Tcp Tcp Any;
        "TCP_INQ" 36 Tcp Pass Only(0);
        "TCP_TX_DELAY" 37 Tcp Pass Only(0);
        "TCP_AO_ADD_KEY" 38 Tcp Tcp Any;
        "TCP_AO_DEL_KEY" 39 Tcp Tcp Any;
        "TCP_AO_INFO" 40 Tcp Pass Any;
        "TCP_AO_GET_KEYS" 41 Tcp Pass Any;
        "TCP_AO_REPAIR" 42 Tcp Tcp Any;
        "TCP_IS_MPTCP" 43 Pass Pass Any;
        "TCP_RTO_MAX_MS" 44 Pass Pass Any;
        "TCP_RTO_MIN_US" 45 Pass Pass Any;
        "TCP_DELACK_MAX_US" 46 Pass Pass Any;
    }
    IPPROTO_IP {
        "IP_TOS" 1 Pass Pass Any;
        "IP_TTL" 2 Pass Pass Any;
        "IP_HDRINCL" 3 Pass Pass Any;
        "IP_OPTIONS" 4 Pass Pass Any;
        "IP_ROUTER_ALERT" 5 Pass Pass Any;
        "IP_RECVOPTS" 6 Pass Pass Any;
        "IP_RETOPTS" 7 Pass Pass Any;
        "IP_PKTINFO" 8 Pass Pass Any;
        // It tells of the last packet that came.
        "IP_PKTOPTIONS" 9 Tcp Tcp Any;
        "IP_MTU_DISCOVER" 10 Pass Pass Any;
        "IP_RECVERR" 11 Pass Pass Any;
        "IP_RECVTTL" 12 Pass Pass Any;
        "IP_RECVTOS" 13 Pass Pass Any;
        "IP_MTU" 14 Pass Pass Any;
        "IP_FREEBIND" 15 Pass Pass Any;
        // What is to be encrypted must be packets.
        "IP_IPSEC_POLICY" 16 Tcp Pass Any;
        "IP_XFRM_POLICY" 17 Tcp Pass Any;
        "IP_PASSSEC" 18 Pass Pass Any;
        "IP_TRANSPARENT" 19 Pass Pass Any;
        "IP_ORIGDSTADDR" 20 Pass Pass Any;
        "IP_MINTTL" 21 Pass Pass Any;
        "IP_NODEFRAG" 22 Pass Pass Any;
        "IP_CHECKSUM" 23 Pass Pass Any;
        "IP_BIND_ADDRESS_NO_PORT" 24 Pass Pass Any;
        "IP_RECVFRAGSIZE" 25 Pass Pass Any;
        "IP_RECVERR_RFC4884" 26 Pass Pass Any;
        "IP_MULTICAST_IF" 32 Pass Pass Any;
        "IP_MULTICAST_TTL" 33 Pass Pass Any;
        "IP_MULTICAST_LOOP" 34 Pass Pass Any;
        "IP_ADD_MEMBERSHIP" 35 Pass Pass Any;
        "IP_DROP_MEMBERSHIP" 36 Pass Pass Any;
        "IP_UNBLOCK_SOURCE" 37 Pass Pass Any;
        "IP_BLOCK_SOURCE" 38 Pass Pass Any;
        "IP_ADD_SOURCE_MEMBERSHIP" 39 Pass Pass Any;
        "IP_DROP_SOURCE_MEMBERSHIP" 40 Pass Pass Any;
        "IP_MSFILTER" 41 Pass Pass Any;
        "MCAST_JOIN_GROUP" 42 Pass Pass Any;
        "MCAST_BLOCK_SOURCE" 43 Pass Pass Any;
        "MCAST_UNBLOCK_SOURCE" 44 Pass Pass Any;
        "MCAST_LEAVE_GROUP" 45 Pass Pass Any;
        "MCAST_JOIN_SOURCE_GROUP" 46 Pass Pass Any;
        "MCAST_LEAVE_SOURCE_GROUP" 47 Pass Pass Any;
        "MCAST_MSFILTER" 48 Pass Pass Any;
        "IP_MULTICAST_ALL" 49 Pass Pass Any;
        "IP_UNICAST_IF" 50 Pass Pass Any;
        "IP_LOCAL_PORT_RANGE" 51 Pass Pass Any;
        "IP_PROTOCOL" 52 Pass Pass Any;
        // Of netfilter: what the connection was made to, which transparent proxies ask for.
        "SO_ORIGINAL_DST" 80 Pass Pass Any;
    }
    IPPROTO_IPV6 {
        // The socket becomes one of IPv4, and its addresses others.
        "IPV6_ADDRFORM" 1 Tcp Pass Any;
        "IPV6_2292PKTINFO" 2 Pass Pass Any;
        "IPV6_2292HOPOPTS" 3 Pass Pass Any;
        "IPV6_2292DSTOPTS" 4 Pass Pass Any;
        "IPV6_2292RTHDR" 5 Pass Pass Any;
        // It tells of the last packet that came.
        "IPV6_2292PKTOPTIONS" 6 Tcp Tcp Any;
        "IPV6_CHECKSUM" 7 Pass Pass Any;
        "IPV6_2292HOPLIMIT" 8 Pass Pass Any;
        "IPV6_NEXTHOP" 9 Pass Pass Any;
        "IPV6_AUTHHDR" 10 Pass Pass Any;
        "IPV6_FLOWINFO" 11 Pass Pass Any;
        "IPV6_UNICAST_HOPS" 16 Pass Pass Any;
        "IPV6_MULTICAST_IF" 17 Pass Pass Any;
        "IPV6_MULTICAST_HOPS" 18 Pass Pass Any;
        "IPV6_MULTICAST_LOOP" 19 Pass Pass Any;
        "IPV6_ADD_MEMBERSHIP" 20 Pass Pass Any;
        "IPV6_DROP_MEMBERSHIP" 21 Pass Pass Any;
        "IPV6_ROUTER_ALERT" 22 Pass Pass Any;
        "IPV6_MTU_DISCOVER" 23 Pass Pass Any;
        "IPV6_MTU" 24 Pass Pass Any;
        "IPV6_RECVERR" 25 Pass Pass Any;
        "IPV6_V6ONLY" 26 Pass Pass Any;
        "IPV6_JOIN_ANYCAST" 27 Pass Pass Any;
        "IPV6_LEAVE_ANYCAST" 28 Pass Pass Any;
        "IPV6_MULTICAST_ALL" 29 Pass Pass Any;
        "IPV6_ROUTER_ALERT_ISOLATE" 30 Pass Pass Any;
        "IPV6_RECVERR_RFC4884" 31 Pass Pass Any;
        "IPV6_FLOWLABEL_MGR" 32 Pass Pass Any;
        "IPV6_FLOWINFO_SEND" 33 Pass Pass Any;
        "IPV6_IPSEC_POLICY" 34 Tcp Pass Any;
        "IPV6_XFRM_POLICY" 35 Tcp Pass Any;
        "IPV6_HDRINCL" 36 Pass Pass Any;
        "MCAST_JOIN_GROUP" 42 Pass Pass Any;
        "MCAST_BLOCK_SOURCE" 43 Pass Pass Any;
        "MCAST_UNBLOCK_SOURCE" 44 Pass Pass Any;
        "MCAST_LEAVE_GROUP" 45 Pass Pass Any;
        "MCAST_JOIN_SOURCE_GROUP" 46 Pass Pass Any;
        "MCAST_LEAVE_SOURCE_GROUP" 47 Pass Pass Any;
        "MCAST_MSFILTER" 48 Pass Pass Any;
        "IPV6_RECVPKTINFO" 49 Pass Pass Any;
        "IPV6_PKTINFO" 50 Pass Pass Any;
        "IPV6_RECVHOPLIMIT" 51 Pass Pass Any;
        "IPV6_HOPLIMIT" 52 Pass Pass Any;
        "IPV6_RECVHOPOPTS" 53 Pass Pass Any;
        "IPV6_HOPOPTS" 54 Pass Pass Any;
        "IPV6_RTHDRDSTOPTS" 55 Pass Pass Any;
        "IPV6_RECVRTHDR" 56 Pass Pass Any;
        "IPV6_RTHDR" 57 Pass Pass Any;
        "IPV6_RECVDSTOPTS" 58 Pass Pass Any;
        "IPV6_DSTOPTS" 59 Pass Pass Any;
        "IPV6_RECVPATHMTU" 60 Pass Pass Any;
        "IPV6_PATHMTU" 61 Pass Pass Any;
        "IPV6_DONTFRAG" 62 Pass Pass Any;
        "IPV6_USE_MIN_MTU" 63 Pass Pass Any;
        "IPV6_RECVTCLASS" 66 Pass Pass Any;
        "IPV6_TCLASS" 67 Pass Pass Any;
        "IPV6_AUTOFLOWLABEL" 70 Pass Pass Any;
        "IPV6_ADDR_PREFERENCES" 72 Pass Pass Any;
        "IPV6_MINHOPCOUNT" 73 Pass Pass Any;
        "IPV6_ORIGDSTADDR" 74 Pass Pass Any;
        "IPV6_TRANSPARENT" 75 Pass Pass Any;
        "IPV6_UNICAST_IF" 76 Pass Pass Any;
        "IPV6_RECVFRAGSIZE" 77 Pass Pass Any;
        "IPV6_FREEBIND" 78 Pass Pass Any;
        "IP6T_SO_ORIGINAL_DST" 80 Pass Pass Any;
    }
}
