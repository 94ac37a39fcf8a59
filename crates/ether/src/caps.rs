//! What a daemon that reads bytes from the wire may do besides: to make and change network interfaces, and no more. Root, too, gives up everything
//! else, before the first thread starts.

use std::ffi::CString;
use std::io;
use std::os::unix::fs::chown;
use std::path::Path;

use crate::sys::checked;

const CAP_NET_ADMIN: u32 = 12;
const VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct Head {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Becomes a service's user, as root, who owns `directory` from then on. The rights stay until [`keep_net_admin`]. Before the first thread starts.
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
    let mut head = Head { version: VERSION_3, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: version 3 takes a head and two structures.
    checked(unsafe { libc::syscall(libc::SYS_capget, &raw mut head, data.as_mut_ptr()) } as isize)?;
    let only = 1 << CAP_NET_ADMIN;
    if data[0].permitted & only == 0 {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    // SAFETY: no pointers. Without PR_SET_NO_NEW_PRIVS and the ambient set no program of ours could get anything anyway: there is none.
    unsafe {
        checked(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) as isize)?;
        checked(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) as isize)?;
    }
    data = [Data { effective: only, permitted: only, inheritable: 0 }, Data::default()];
    // SAFETY: as for capget.
    checked(unsafe { libc::syscall(libc::SYS_capset, &raw mut head, data.as_ptr()) } as isize).map(drop)
}
