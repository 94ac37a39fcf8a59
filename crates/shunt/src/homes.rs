//! Reading the state of running programs: each process under Shunt keeps its connections in a home,
//! a memory file that is found, and read, through `/proc/PID/fd`. Nothing is attached to the
//! process, and nothing in a home is trusted.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use host::addr::Addr;
use serde::Serialize;
use sockets::conn::{Conn, path, state};
use sockets::home::{CONNS, FIRST, Header, MAGIC, NAME};

use crate::{reason, whose};

/// Why nothing can be read at all.
#[derive(Debug)]
pub struct Error(io::Error);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/proc cannot be read: {}", self.0)
    }
}

/// A process that runs under Shunt.
#[derive(Debug, Serialize)]
pub struct ProcessStat {
    pub pid: u32,
    /// The name, as ps shows it.
    pub comm: String,
    /// The container that it is in, if that is another one than ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The process with which connections inherited by fork() are shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_with: Option<u32>,
    pub connections: Vec<ConnStat>,
}

/// One of its connections.
#[derive(Debug, Serialize)]
pub struct ConnStat {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fd: Option<i32>,
    pub local: Option<SocketAddr>,
    pub peer: Option<SocketAddr>,
    /// The path of what it sends: `tcp`, `ring 16K`, `ring 256K`, or `via`.
    pub tx: &'static str,
    /// The path of what it receives.
    pub rx: &'static str,
    /// Why it is, or one of its directions is, on TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes received, and sent, by memory.
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Bytes received by memory that the program has not read, if both ends may be looked into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread: Option<u64>,
    /// Wake-ups of the other end: by a byte on the companion, by an eventfd, by a note for its
    /// epoll set.
    pub kicks: u64,
    pub bells: u64,
    pub hints: u64,
    /// Waits that ended while spinning.
    pub spins_won: u64,
    /// Waits that spun in vain.
    pub spins_lost: u64,
    pub sleeps: u64,
}

/// All processes that run under Shunt and that we may look into, by pid.
pub fn read_homes() -> Result<Vec<ProcessStat>, Error> {
    let (mut found, mut homes) = (Vec::new(), BTreeMap::new());
    for pid in pids(Path::new("/proc")).map_err(Error)? {
        let paths = find_homes(pid);
        if paths.is_empty() {
            continue;
        }
        // After fork() several processes hold one home.
        for path in paths {
            let Ok(meta) = fs::metadata(&path) else { continue };
            let home = homes.entry((meta.dev(), meta.ino())).or_insert((path, Vec::new()));
            home.1.push(Holder { process: found.len(), pid_inside: pid_inside(pid) });
        }
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let comm = comm.trim_end().to_string();
        let container = whose::container(pid);
        found.push(ProcessStat { pid, comm, container, shared_with: None, connections: Vec::new() });
    }
    let mut makes_its_own = vec![false; found.len()];
    for (path, holders) in homes.values() {
        let Some(home) = Home::open(path) else { continue };
        // A home or connection whose maker is gone is shown with the first that still holds it.
        let holder_with =
            |pid: u32| holders.iter().find(|h| h.pid_inside == pid).unwrap_or(&holders[0]).process;
        let maker = holder_with(home.maker);
        makes_its_own[maker] = true;
        for other in holders.iter().filter(|holder| holder.process != maker) {
            found[other.process].shared_with = Some(found[maker].pid);
        }
        for (owner, connection) in home.connections() {
            found[holder_with(owner)].connections.push(connection);
        }
    }
    for (process, own) in found.iter_mut().zip(makes_its_own) {
        if own {
            process.shared_with = None;
        }
        add_young_addresses(process);
    }
    add_unread(&mut found);
    Ok(found)
}

/// How much of what came by memory is unread: what the other end has sent by it, if we may look
/// into that, too, less what has been received. Not where two pairs (of two networks) have the same
/// addresses, nor where an end has gone back to TCP, with bytes that were sent again.
fn add_unread(found: &mut [ProcessStat]) {
    let mut sent = HashMap::new();
    for conn in found.iter().flat_map(|process| &process.connections) {
        if let (Some(local), Some(peer)) = (conn.local, conn.peer) {
            let bytes = conn.tx.starts_with("ring").then_some(conn.bytes_out);
            sent.entry((local, peer)).and_modify(|sent| *sent = None).or_insert(bytes);
        }
    }
    for conn in found.iter_mut().flat_map(|process| &mut process.connections) {
        let ends = conn.peer.zip(conn.local).filter(|_| conn.rx.starts_with("ring"));
        let by_peer = ends.and_then(|ends| *sent.get(&ends)?);
        conn.unread = by_peer.map(|sent| sent.saturating_sub(conn.bytes_in));
    }
}

/// The paths through which the homes that a process holds can be opened: its own, and those it
/// inherited. Empty if it has none, or if we may not look.
pub fn find_homes(pid: u32) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    // What the descriptor of a home points to, as `/proc` shows it.
    let link = [b"/memfd:", NAME.to_bytes()].concat();
    let is_home = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(&link))
    };
    entries.flatten().map(|entry| entry.path()).filter(is_home).collect()
}

/// A process that holds a home.
struct Holder {
    /// Its place among those found.
    process: usize,
    /// Its id as it sees itself, which in a container is another one.
    pid_inside: u32,
}

/// A home, opened and of the layout that this version knows.
struct Home {
    file: File,
    /// Who made it, by the id that the process itself sees.
    maker: u32,
    used: usize,
}

impl Home {
    fn open(path: &Path) -> Option<Home> {
        let file = File::open(path).ok()?;
        let mut page = [0; size_of::<Header>()];
        file.read_exact_at(&mut page, 0).ok()?;
        let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| page[at + i]));
        let magic = u64::from_ne_bytes(std::array::from_fn(|i| page[offset_of!(Header, magic) + i]));
        // Another version's connections may be laid out otherwise.
        if magic != MAGIC || half(offset_of!(Header, conn_bytes)) as usize != size_of::<Conn>() {
            return None;
        }
        let used = (half(offset_of!(Header, used)) as usize).min(CONNS);
        Some(Home { file, maker: half(offset_of!(Header, pid)), used })
    }

    /// The connections in it, each with the process that it belongs to.
    fn connections(&self) -> impl Iterator<Item = (u32, ConnStat)> {
        (0..self.used).map_while(|index| self.copy(index)).filter_map(|copy| shown(&copy))
    }

    fn copy(&self, index: usize) -> Option<Copy> {
        let mut conn = MaybeUninit::<Conn>::zeroed();
        let at = conn.as_mut_ptr().cast::<u8>();
        // SAFETY: the bytes of `conn`, all of which are initialised.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at, size_of::<Conn>()) };
        self.file.read_exact_at(bytes, (FIRST + index * size_of::<Conn>()) as u64).ok()?;
        let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (rx, tx) = (half(offset_of!(Conn, rx.path)), half(offset_of!(Conn, tx.path)));
        // What the directions keep under their locks has types that not every bit pattern fits.
        bytes[offset_of!(Conn, rx)..][..size_of_val_of(|conn| &conn.rx)].fill(0);
        bytes[offset_of!(Conn, tx)..][..size_of_val_of(|conn| &conn.tx)].fill(0);
        // SAFETY: zeroes are valid directions; the rest is integers, atomic or not, and addresses
        // that are not followed.
        Some(Copy { conn: unsafe { conn.assume_init() }, rx, tx })
    }
}

/// The size of a field's type, which inference finds.
const fn size_of_val_of<T>(_field: fn(&Conn) -> &T) -> usize {
    size_of::<T>()
}

/// A copy of a connection, made while it went on, and the paths of its directions.
struct Copy {
    conn: Conn,
    rx: u32,
    tx: u32,
}

/// A connection as `shunt stat` shows it, and the process that it belongs to.
fn shown(Copy { conn, rx, tx }: &Copy) -> Option<(u32, ConnStat)> {
    let now = conn.state.load(Relaxed);
    if now == state::FREE {
        return None;
    }
    let in_memory = |path: u32| matches!(path, path::SMALL | path::BIG);
    let reason = match conn.reason.load(Relaxed) {
        _ if in_memory(*rx) && in_memory(*tx) => None,
        0 if now == state::PROMOTED => Some("agreed, moves with the next write".to_string()),
        code => Some(reason::name(code as usize)),
    };
    let (own, peer) = conn.addresses();
    let (counters, via) = (&conn.counters, conn.is_via());
    let stat = ConnStat {
        fd: i32::try_from(conn.fd.load(Relaxed)).ok(),
        local: socket_addr(own),
        peer: socket_addr(peer),
        tx: path_name(*tx, via),
        rx: path_name(*rx, via),
        reason,
        bytes_in: counters.ring_in.load(Relaxed),
        bytes_out: counters.ring_out.load(Relaxed),
        unread: None,
        kicks: counters.kicks.load(Relaxed),
        bells: counters.bells.load(Relaxed),
        hints: counters.hints.load(Relaxed),
        spins_won: counters.spins_won.load(Relaxed),
        spins_lost: counters.spins_lost.load(Relaxed),
        sleeps: counters.sleeps.load(Relaxed),
    };
    Some((conn.pid.load(Relaxed), stat))
}

/// `via`: the connection begins by Virtual Interfaces, where others begin by the small ring.
fn path_name(path: u32, via: bool) -> &'static str {
    const { assert!(sockets::layout::SMALL == 16 << 10 && sockets::layout::BIG == 256 << 10) };
    match path {
        path::SMALL if via => "via",
        path::SMALL => "ring 16K",
        path::BIG => "ring 256K",
        _ => "tcp",
    }
}

/// `None` as long as the connection is too young for its addresses to have been asked for.
fn socket_addr(addr: Addr) -> Option<SocketAddr> {
    let ip = Ipv6Addr::from(addr.ip);
    let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
    (addr.port != 0).then(|| SocketAddr::new(ip, addr.port))
}

/// The addresses of connections that have not asked for them, from the kernel's tables of the
/// process's network.
fn add_young_addresses(process: &mut ProcessStat) {
    let pid = process.pid;
    let mut tables = None;
    for conn in process.connections.iter_mut().filter(|conn| conn.local.is_none()) {
        let tables = tables.get_or_insert_with(|| {
            let read = |name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
            by_inode(&(read("tcp") + &read("tcp6")))
        });
        let link = conn.fd.and_then(|fd| fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok());
        let inode = link
            .as_ref()
            .and_then(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok());
        if let Some(&(local, peer)) = inode.and_then(|inode| tables.get(&inode)) {
            (conn.local, conn.peer) = (Some(local), Some(peer));
        }
    }
}

/// The two addresses of each socket in a table like /proc/net/tcp, by inode.
fn by_inode(table: &str) -> HashMap<u64, (SocketAddr, SocketAddr)> {
    let entry = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let inode = fields.get(9)?.parse().ok()?;
        Some((inode, (kernel_addr(fields[1])?, kernel_addr(fields[2])?)))
    };
    table.lines().filter_map(entry).collect()
}

/// An address as the kernel prints it: 32-bit words of network order, read as the machine's own, in
/// hexadecimal.
fn kernel_addr(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let mut bytes = [0; 16];
    for (word, place) in ip.as_bytes().chunks(8).zip(bytes.chunks_exact_mut(4)) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
        32 => IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// A process's id in its innermost namespace, which is how it calls itself.
fn pid_inside(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    line.and_then(|pids| pids.split_ascii_whitespace().last()?.parse().ok()).unwrap_or(pid)
}

fn pids(proc: &Path) -> io::Result<Vec<u32>> {
    let names = fs::read_dir(proc)?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<u32> = names.collect();
    pids.sort_unstable();
    Ok(pids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;

    fn addr(last: u8, port: u16) -> Addr {
        Addr { ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, last], port }
    }

    fn own_connections() -> Vec<ConnStat> {
        let pid = std::process::id();
        read_homes().unwrap().into_iter().find(|process| process.pid == pid).unwrap().connections
    }

    /// One test, because all threads of this process share its home.
    #[test]
    fn a_home_is_shown() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let young_client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let conn = |fd: u32, now| {
            let conn = sockets::home::take(|_| ()).unwrap();
            conn.reset();
            conn.fd.store(fd, Relaxed);
            conn.pid.store(std::process::id(), Relaxed);
            conn.state.store(now, Relaxed);
            conn
        };
        let young = conn(young_client.as_raw_fd() as u32, state::NEW);
        young.set_reason(sockets::reason::Reason::Young);
        let moved = conn(70, state::PROMOTED);
        moved.set_addresses(addr(1, 80), addr(2, 40000));
        moved.rx.set_path(path::SMALL);
        moved.tx.set_path(path::BIG);
        moved.counters.ring_in.store(5, Relaxed);
        moved.counters.bells.store(2, Relaxed);
        moved.counters.spins_lost.store(7, Relaxed);
        let half = conn(71, state::PROMOTED);
        half.set_addresses(addr(1, 80), addr(2, 40001));
        half.tx.set_path(path::SMALL);
        half.manner.store(1, Relaxed);
        let gone = conn(72, state::PLAIN);
        sockets::home::give(gone);

        let shown = own_connections();
        assert_eq!(shown.len(), 3);
        let find = |fd: i32| shown.iter().find(|conn| conn.fd == Some(fd)).unwrap();
        let young = find(young_client.as_raw_fd());
        assert_eq!(young.reason.as_deref(), Some("too few calls yet"));
        assert_eq!((young.tx, young.rx), ("tcp", "tcp"));
        assert_eq!(young.local, Some(young_client.local_addr().unwrap()));
        assert_eq!(young.peer, Some(listener.local_addr().unwrap()));
        let moved = find(70);
        assert_eq!((moved.tx, moved.rx, &moved.reason), ("ring 256K", "ring 16K", &None));
        assert_eq!(moved.peer, Some("10.0.0.2:40000".parse().unwrap()));
        assert_eq!((moved.bytes_in, moved.bells, moved.spins_lost), (5, 2, 7));
        assert_eq!(find(71).reason.as_deref(), Some("agreed, moves with the next write"));
        assert_eq!((find(71).tx, find(71).rx), ("via", "tcp"));
    }

    #[test]
    fn foreign_homes_are_left_alone() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || Home::open(file.path());
        assert!(open().is_none(), "empty");
        let mut bytes = [0xff; 8192];
        let put = |bytes: &[u8]| fs::write(file.path(), bytes).unwrap();
        put(&bytes);
        assert!(open().is_none(), "another magic");
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        put(&bytes);
        assert!(open().is_none(), "another size of connections");
        bytes[offset_of!(Header, conn_bytes)..][..4]
            .copy_from_slice(&(size_of::<Conn>() as u32).to_ne_bytes());
        put(&bytes);
        // Every bit of it set, and more connections promised than there are.
        let home = open().unwrap();
        assert_eq!(home.used, CONNS);
        let shown: Vec<_> = home.connections().collect();
        assert_eq!(shown.len(), 4096 / size_of::<Conn>());
        assert!(shown.iter().all(|(_, conn)| conn.tx == "tcp" && conn.reason.is_some()));
    }

    #[test]
    fn tables_of_the_kernel_are_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:1F90 0200000A:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 20 4 30 10 -1\n   \
            1: 00000000000000000000000001000000:0016 B80D0120000000000000000002000000:0017 01 0:0 0:0 0 0 0 12 1\n   \
            2: xyz\n";
        let found = by_inode(table);
        assert_eq!(found[&4711], ("127.0.0.1:8080".parse().unwrap(), "10.0.0.2:40000".parse().unwrap()));
        assert_eq!(found[&12], ("[::1]:22".parse().unwrap(), "[2001:db8::2]:23".parse().unwrap()));
        assert_eq!(found.len(), 2);
    }
}
