//! The sets of the process: made, closed, copied by fork(), given up.

use fabric::lock::Lock;
use fabric::sync::Ordering;

use super::edges::numbers;
use super::queues::QUEUES_TAKEN;
use super::set::{Guard, PRESENT, Set, each_set, set, sets_made, take_set};
use super::standin;
use crate::conn::flag;
use crate::table::{self, Entry};
use crate::{process, thread};

/// The program has made an epoll set.
pub fn created(fd: i32) {
    if !process::active() {
        return;
    }
    let Some(set) = take_set() else { return };
    set.fd.store(fd, Ordering::Relaxed);
    set.inherited.store(0, Ordering::Relaxed);
    set.refs.store(1, Ordering::Release);
    match table::swap(fd, Entry::Set(set)) {
        Some(Entry::Set(old)) => old.release(),
        Some(_) => {}
        None => set.release(),
    }
}

/// A descriptor of the set is another one's duplicate.
pub fn duplicated(set: &'static Set) {
    set.refs.fetch_add(1, Ordering::AcqRel);
}

/// A descriptor of the set is about to be closed.
pub fn closed(set: &'static Set, fd: i32) {
    if set.fd.load(Ordering::Relaxed) == fd && set.refs.load(Ordering::Acquire) > 1 {
        // Another number stands for it from now on, if there is one.
        table::for_each(|other, entry| {
            if matches!(entry, Entry::Set(same) if core::ptr::eq(same, set)) {
                set.fd.store(other, Ordering::Relaxed);
            }
        });
    }
    set.release();
}

/// Before fork(): takes the locks of all sets. False if that cannot be, as this thread has one of
/// them (it is in a signal handler).
pub fn freeze() -> bool {
    let tid = thread::tid();
    for index in 0..sets_made() {
        if !set(index).is_none_or(|set| !set.in_use() || set.lock.lock(tid)) {
            thaw_below(index);
            return false;
        }
    }
    true
}

/// After fork(), in the parent.
pub fn thaw() {
    thaw_below(sets_made());
}

/// Releases what this thread has; a set that was made meanwhile is another one's.
fn thaw_below(end: usize) {
    let tid = thread::tid();
    for set in (0..end).filter_map(set).filter(|set| set.lock.owner() == tid) {
        set.lock.unlock();
    }
}

/// Counts the memberships of this process once more for another one that has copies of its sets
/// ([`crate::conn::Conn::epolls`] counts all of them), or no longer.
pub fn share_members(more: bool) {
    each_set(|set| {
        // At fork() this thread has the lock already.
        let held = (set.lock.owner() != thread::tid()).then(|| set.lock());
        let mut guard = core::mem::ManuallyDrop::new(Guard(set));
        if !matches!(held, Some(None)) && !guard.state().parts[0].is_null() {
            for fd in numbers() {
                let member = *guard.member(fd);
                if let Some(conn) = member.conn.filter(|_| member.flags & PRESENT != 0)
                    && conn.has(flag::SHARED)
                {
                    if more {
                        conn.epolls.fetch_add(1, Ordering::AcqRel);
                    } else {
                        conn.epolls.fetch_sub(1, Ordering::AcqRel);
                    }
                }
            }
        }
    });
}

/// In the child of fork(): event queues and bells are the parent's.
pub fn forked() {
    // In use or not: one may have been given up by another thread since it was frozen.
    (0..sets_made()).filter_map(set).filter(|set| set.lock.owner() != 0).for_each(|set| set.lock.reset());
    each_set(|set| set.inherited.store(1, Ordering::Relaxed));
    renounce();
}

/// The process has given up its bells: its sets are woken by kicks from then on.
pub(crate) fn renounce() {
    each_set(|set| {
        set.queue.store(0, Ordering::Relaxed);
        set.list_all();
    });
    QUEUES_TAKEN.store(0, Ordering::Relaxed);
}

/// Whether a descriptor of ours belongs to a set of the program's.
pub(crate) fn uses(fd: i32) -> bool {
    let mut any = standin::is_stand_in(fd);
    each_set(|set| any |= [&set.inner, &set.lamp].iter().any(|own| own.load(Ordering::Acquire) == fd + 1));
    any
}

/// A jump out of a signal handler has ended the call that had the lock of a set: the set is put in
/// order and the lock given back. False if it is no set's.
#[cold]
pub fn abandoned(lock: &Lock) -> bool {
    let Some(set) = (0..sets_made()).filter_map(set).find(|set| core::ptr::eq(&raw const set.lock, lock))
    else {
        return false;
    };
    set.put_in_order(Guard(set));
    set.pass_on();
    true
}
