//! A process that becomes a lesser one: another user, fewer rights, a user namespace of its own.
//! What it shares with others, first of all with a parent that stays as it is, must not be in its
//! hands then, as it may be taken over: `sockets::renounce`. Its connections go back to tcp before.
//!
//! Most do so when they start, with nothing yet to give up. All are followed as any other from then
//! on.

use core::ffi::{c_char, c_int, c_long};
use fabric::{credentials, sys};
use sockets::reason::Reason;
use sockets::{process, renounce};

use crate::next::hooks;

/// Before a call that changes who this process is, or what it may.
#[cold]
pub fn changing() {
    if process::pid() == 0 || process::ended() || process::borrowed() || !renounce::has_anything() {
        return;
    }
    renounce::everything(Reason::NewRights);
}

const AS_IT_IS: u32 = u32::MAX;

/// Before the process's users are set; not if it has these already.
fn users(new: &[u32]) {
    if !process::ended() {
        ids(sys::getresuid(), new);
    }
}

/// The same for groups.
fn groups(new: &[u32]) {
    if !process::ended() {
        ids(sys::getresgid(), new);
    }
}

fn ids(now: [u32; 3], new: &[u32]) {
    let same = now[0] == now[1] && now[1] == now[2] && new.iter().all(|&id| id == now[0] || id == AS_IT_IS);
    if !same {
        changing();
    }
}

/// Whether these flags of unshare(), setns() or clone() may bring another user namespace; setns()
/// takes any namespace if there are none.
pub fn new_users(flags: c_int) -> bool {
    flags & libc::CLONE_NEWUSER != 0
}

/// In a child that clone() has made with these flags.
pub fn born(flags: c_int) {
    if new_users(flags) {
        credentials::forget();
        changing();
    }
}

hooks! {
    fn setuid(next; user: u32) -> c_int {
        users(&[user]);
        next(user)
    }
    fn seteuid(next; user: u32) -> c_int {
        users(&[user]);
        next(user)
    }
    fn setreuid(next; real: u32, effective: u32) -> c_int {
        users(&[real, effective]);
        next(real, effective)
    }
    fn setresuid(next; real: u32, effective: u32, saved: u32) -> c_int {
        users(&[real, effective, saved]);
        next(real, effective, saved)
    }
    fn setfsuid(next; user: u32) -> c_int {
        users(&[user]);
        next(user)
    }
    fn setgid(next; group: u32) -> c_int {
        groups(&[group]);
        next(group)
    }
    fn setegid(next; group: u32) -> c_int {
        groups(&[group]);
        next(group)
    }
    fn setregid(next; real: u32, effective: u32) -> c_int {
        groups(&[real, effective]);
        next(real, effective)
    }
    fn setresgid(next; real: u32, effective: u32, saved: u32) -> c_int {
        groups(&[real, effective, saved]);
        next(real, effective, saved)
    }
    fn setfsgid(next; group: u32) -> c_int {
        groups(&[group]);
        next(group)
    }
    fn setgroups(next; count: usize, list: *const u32) -> c_int {
        changing();
        next(count, list)
    }
    fn initgroups(next; user: *const c_char, group: u32) -> c_int {
        changing();
        next(user, group)
    }
    fn capset(next; header: usize, data: usize) -> c_int {
        changing();
        next(header, data)
    }
}

/// The same by syscall(): whether the number is one of these calls, before it is made. There they
/// hold for the calling thread alone, and the process has both then: all the more.
pub fn by_number(number: c_long, a: usize, b: usize, c: usize) {
    let [one, two, three] = [a as u32, b as u32, c as u32];
    match number {
        libc::SYS_setuid | libc::SYS_setfsuid => users(&[one]),
        libc::SYS_setreuid => users(&[one, two]),
        libc::SYS_setresuid => users(&[one, two, three]),
        libc::SYS_setgid | libc::SYS_setfsgid => groups(&[one]),
        libc::SYS_setregid => groups(&[one, two]),
        libc::SYS_setresgid => groups(&[one, two, three]),
        libc::SYS_setgroups | libc::SYS_capset | libc::SYS_landlock_restrict_self => changing(),
        libc::SYS_unshare if new_users(a as c_int) => changing(),
        libc::SYS_setns if b == 0 || new_users(b as c_int) => changing(),
        _ => {}
    }
}
