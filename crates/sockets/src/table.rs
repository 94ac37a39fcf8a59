//! The descriptor table: what Shunt knows of each descriptor, one load away. An entry is a tagged
//! address; zero means that the call goes straight to libc.

use fabric::sync::{AtomicU64, AtomicUsize, Ordering};
use fabric::words::Array;

use crate::conn::Conn;
use crate::epoll::set::Set;

/// What an entry says.
#[derive(Clone, Copy)]
pub enum Entry {
    /// Nothing of ours.
    None,
    /// A connection.
    Conn(&'static Conn),
    /// An epoll set.
    Set(&'static Set),
    /// A descriptor of Shunt's own, that programs must not see.
    Own,
}

/// Descriptors that it has room for.
pub const LEN: usize = 1 << 20;
const TAG: u64 = 3;
const CONN: u64 = 1;
const SET: u64 = 2;
const OWN: u64 = 3;

/// Descriptors below this, which are nearly all, have a table of their own: what is mapped is the
/// program's no more.
const LOW: usize = 1 << 16;

static TABLE: Array<AtomicU64, LOW> = Array::new();
/// The table of those from [`LOW`] on, once there is one.
static HIGH: Array<AtomicU64, { LEN - LOW }> = Array::new();
/// One more than the highest descriptor of the program's that ever had an entry, and of anyone's:
/// ours lie thousands higher.
static TOP: AtomicUsize = AtomicUsize::new(0);
static TOP_OF_ALL: AtomicUsize = AtomicUsize::new(0);

#[inline(always)]
fn cell(fd: i32) -> Option<&'static AtomicU64> {
    let fd = fd as u32 as usize;
    if fd < LOW { TABLE.get().get(fd) } else { high(fd) }
}

#[cold]
fn high(fd: usize) -> Option<&'static AtomicU64> {
    HIGH.get().get(fd - LOW)
}

fn decode(word: u64) -> Entry {
    let at = word & !TAG;
    match word & TAG {
        // SAFETY: CONN entries are made from &'static Conn only.
        CONN => Entry::Conn(unsafe { &*(at as *const Conn) }),
        // SAFETY: SET entries are made from &'static Set only.
        SET => Entry::Set(unsafe { &*(at as *const Set) }),
        OWN => Entry::Own,
        _ => Entry::None,
    }
}

fn encode(entry: Entry) -> u64 {
    match entry {
        Entry::None => 0,
        Entry::Conn(conn) => core::ptr::from_ref(conn) as u64 | CONN,
        Entry::Set(set) => core::ptr::from_ref(set) as u64 | SET,
        Entry::Own => OWN,
    }
}

/// What is known of `fd`.
#[inline(always)]
pub fn entry(fd: i32) -> Entry {
    match cell(fd) {
        None => Entry::None,
        Some(cell) => decode(cell.load(Ordering::Acquire)),
    }
}

/// The connection behind `fd`, if it is one of ours.
#[inline(always)]
pub fn conn(fd: i32) -> Option<&'static Conn> {
    match entry(fd) {
        Entry::Conn(conn) => Some(conn),
        _ => None,
    }
}

/// The epoll set behind `fd`.
#[inline(always)]
pub fn set(fd: i32) -> Option<&'static Set> {
    match entry(fd) {
        Entry::Set(set) => Some(set),
        _ => None,
    }
}

/// Whether `fd` is Shunt's own.
#[inline(always)]
pub fn is_own(fd: i32) -> bool {
    matches!(entry(fd), Entry::Own)
}

/// Changes an entry; returns what it was. False room (fd too high, no memory) leaves things as they
/// are and gives `None`.
pub fn swap(fd: i32, entry: Entry) -> Option<Entry> {
    let _ = if (0..LOW as i32).contains(&fd) { TABLE.make() } else { HIGH.make() };
    let cell = cell(fd)?;
    TOP_OF_ALL.fetch_max(fd as usize + 1, Ordering::AcqRel);
    if matches!(entry, Entry::Conn(_) | Entry::Set(_)) {
        TOP.fetch_max(fd as usize + 1, Ordering::AcqRel);
    }
    Some(decode(cell.swap(encode(entry), Ordering::AcqRel)))
}

/// Notes a descriptor of our own, and what it stands for ([`crate::descriptors::intact`]), of which
/// 62 bits are kept.
pub fn own(fd: i32, identity: u64) {
    swap(fd, Entry::Own);
    if let Some(cell) = cell(fd) {
        cell.store(identity << 2 | OWN, Ordering::Release);
    }
}

/// Whether `fd` is one of our own, noted with this identity.
pub fn is_own_as(fd: i32, identity: u64) -> bool {
    cell(fd).is_some_and(|cell| cell.load(Ordering::Acquire) == identity << 2 | OWN)
}

/// One more than the highest descriptor that ever was a connection or a set.
pub fn top() -> i32 {
    TOP.load(Ordering::Acquire) as i32
}

/// One more than the highest descriptor that ever had an entry, our own ones included.
pub fn top_of_all() -> i32 {
    TOP_OF_ALL.load(Ordering::Acquire) as i32
}

/// Calls `each` for every connection and set. As long as the table, so not for what happens with
/// each connection.
pub fn for_each(mut each: impl FnMut(i32, Entry)) {
    for fd in 0..top() {
        match entry(fd) {
            Entry::None | Entry::Own => {}
            entry => each(fd, entry),
        }
    }
}

/// The same for every connection.
pub fn each_conn(mut each: impl FnMut(i32, &'static Conn)) {
    for_each(|fd, entry| {
        if let Entry::Conn(conn) = entry {
            each(fd, conn);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn high_descriptors_have_entries_as_well() {
        let conn = crate::home::take(|_| ()).unwrap();
        for fd in [LOW as i32 - 1, LOW as i32, LEN as i32 - 1] {
            assert!(matches!(swap(fd, Entry::Conn(conn)), Some(Entry::None)));
            assert!(super::conn(fd).is_some_and(|found| core::ptr::eq(found, conn)));
            assert!(matches!(swap(fd, Entry::None), Some(Entry::Conn(_))));
        }
        assert!(swap(LEN as i32, Entry::Own).is_none() && swap(-1, Entry::Own).is_none());
    }

    #[test]
    fn descriptors_of_our_own_do_not_lengthen_the_walk() {
        let conn = crate::home::take(|_| ()).unwrap();
        swap(40, Entry::Conn(conn));
        let before = top();
        swap(7000, Entry::Own);
        assert!(top() == before && top_of_all() > 7000);
        let mut met = Vec::new();
        for_each(|fd, _| met.push(fd));
        assert!(met.contains(&40) && met.iter().all(|&fd| fd < before));
        swap(7000, Entry::None);
        swap(40, Entry::None);
    }
}
