//! The rights of a daemon that reads bytes from the wire: to make and change network interfaces,
//! and no others. Root, too, gives up everything else, before the first thread starts.

use std::ffi::CString;
use std::io;
use std::os::unix::fs::chown;
use std::path::Path;

use ::caps::{self, CapSet, Capability, CapsHashSet};

use crate::sys::checked;

/// Changes from root to a service's user, who owns `directory` from then on. The capabilities stay
/// until [`keep_net_admin`]. To be called before the first thread starts.
pub fn become_user(name: &str, directory: &Path) -> io::Result<()> {
    let unknown = || io::Error::new(io::ErrorKind::NotFound, format!("there is no user {name}"));
    let called = CString::new(name).map_err(|_| unknown())?;
    // SAFETY: no other thread is there that could ask for a user, and the answer is copied.
    let (uid, gid) = unsafe {
        let found = libc::getpwnam(called.as_ptr()).as_ref().ok_or_else(unknown)?;
        (found.pw_uid, found.pw_gid)
    };
    std::fs::create_dir_all(directory)?;
    chown(directory, Some(uid), Some(gid))?;
    // SAFETY: numbers, and no groups at all.
    unsafe {
        checked(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) as isize)?;
        checked(libc::setgroups(0, core::ptr::null()) as isize)?;
        checked(libc::setresgid(gid, gid, gid) as isize)?;
        checked(libc::setresuid(uid, uid, uid) as isize).map(drop)
    }
}

/// Keeps CAP_NET_ADMIN alone, also over exec(). Fails where the process does not have it.
pub fn keep_net_admin() -> io::Result<()> {
    let only = CapsHashSet::from([Capability::CAP_NET_ADMIN]);
    if !caps::has_cap(None, CapSet::Permitted, Capability::CAP_NET_ADMIN).map_err(io::Error::other)? {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    // SAFETY: no pointers. Without it and with an empty ambient set no program that we start could
    // get rights either: there is none.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } as isize)?;
    caps::clear(None, CapSet::Ambient)
        .and_then(|()| caps::clear(None, CapSet::Inheritable))
        .and_then(|()| caps::set(None, CapSet::Effective, &only))
        .and_then(|()| caps::set(None, CapSet::Permitted, &only))
        .map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread, as the capabilities and the promise to get no new ones belong to a thread.
    #[test]
    fn one_capability_is_left() {
        let lines = std::thread::spawn(|| {
            let may = caps::has_cap(None, CapSet::Permitted, Capability::CAP_NET_ADMIN).unwrap();
            let kept = keep_net_admin();
            assert_eq!(may, kept.is_ok(), "{kept:?}");
            may.then(|| std::fs::read_to_string("/proc/thread-self/status").unwrap())
        });
        let Some(lines) = lines.join().unwrap() else { return };
        for (name, bits) in [("CapInh", 0), ("CapPrm", 1 << 12), ("CapEff", 1 << 12), ("CapAmb", 0)] {
            assert!(lines.contains(&format!("{name}:\t{bits:016x}\n")), "{name}: {lines}");
        }
        assert!(lines.contains("NoNewPrivs:\t1\n"));
    }
}
