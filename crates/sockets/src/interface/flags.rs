//! The MSG_ flags of send, recv and their kin.

use super::What::{self, Follow, Pass, Tcp};

/// A flag.
pub struct Row {
    pub bit: i32,
    pub name: &'static str,
    pub sent: What,
    pub received: What,
}

/// Which of the flags of a sending call only tcp can do, or nobody knows.
pub fn sending_by_tcp(flags: i32) -> i32 {
    flags & SENDING_BY_TCP
}

/// The same of a receiving call.
pub fn receiving_by_tcp(flags: i32) -> i32 {
    flags & RECEIVING_BY_TCP
}

const SENDING_BY_TCP: i32 = by_tcp(true);
const RECEIVING_BY_TCP: i32 = by_tcp(false);

/// The bits of all rows that say so, and those of none.
const fn by_tcp(sent: bool) -> i32 {
    let (mut known, mut index) = (0, 0);
    while index < TABLE.len() {
        let row = &TABLE[index];
        if !matches!(if sent { row.sent } else { row.received }, Tcp) {
            known |= row.bit;
        }
        index += 1;
    }
    !known
}

const fn row(bit: u32, name: &'static str, sent: What, received: What) -> Row {
    Row { bit: bit as i32, name, sent, received }
}

/// Every flag. Urgent data has ways of its own (`io::send`, `io::recv`), as has the error queue,
/// which is the kernel's.
pub static TABLE: &[Row] = &[
    row(0x1, "MSG_OOB", Follow, Follow),
    row(0x2, "MSG_PEEK", Pass, Follow),
    row(0x4, "MSG_DONTROUTE", Pass, Pass),
    row(0x8, "MSG_CTRUNC", Pass, Pass),
    row(0x10, "MSG_PROXY", Pass, Pass),
    row(0x20, "MSG_TRUNC", Pass, Follow),
    row(0x40, "MSG_DONTWAIT", Follow, Follow),
    row(0x80, "MSG_EOR", Pass, Pass),
    row(0x100, "MSG_WAITALL", Pass, Follow),
    row(0x200, "MSG_FIN", Pass, Pass),
    row(0x400, "MSG_SYN", Pass, Pass),
    row(0x800, "MSG_CONFIRM", Pass, Pass),
    row(0x1000, "MSG_RST", Pass, Pass),
    row(0x2000, "MSG_ERRQUEUE", Pass, Follow),
    row(0x4000, "MSG_NOSIGNAL", Follow, Pass),
    // What is sent is read at once, so it need not wait for more.
    row(0x8000, "MSG_MORE", Pass, Pass),
    row(0x1_0000, "MSG_WAITFORONE", Pass, Follow),
    // The kernel's own, which it takes from nobody.
    row(0x2_0000, "MSG_SENDPAGE_NOTLAST", Pass, Pass),
    row(0x4_0000, "MSG_BATCH", Pass, Pass),
    row(0x8_0000, "MSG_NO_SHARED_FRAGS", Pass, Pass),
    row(0x10_0000, "MSG_SENDPAGE_DECRYPTED", Pass, Pass),
    // Bytes in the memory of a device.
    row(0x200_0000, "MSG_SOCK_DEVMEM", Tcp, Tcp),
    // Without SO_ZEROCOPY it means nothing, and that option keeps a connection on tcp.
    row(0x400_0000, "MSG_ZEROCOPY", Pass, Pass),
    row(0x800_0000, "MSG_SPLICE_PAGES", Pass, Pass),
    // On a connection that is there it is an error.
    row(0x2000_0000, "MSG_FASTOPEN", Tcp, Pass),
    row(0x4000_0000, "MSG_CMSG_CLOEXEC", Pass, Pass),
    row(0x8000_0000, "MSG_CMSG_COMPAT", Pass, Pass),
];
