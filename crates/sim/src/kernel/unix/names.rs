//! Names of UNIX sockets, and who may send to whom.

use syscalls::Errno;

use super::super::objects::{Data, key};
use super::super::state::{Kernel, Tid};
use super::super::user;

/// The name in a `struct sockaddr_un`: a path, or a zero and an abstract name; none in what has the
/// family alone.
pub(super) fn name_of(at: usize, len: usize) -> Result<Vec<u8>, Errno> {
    if len < 2 || len > size_of::<libc::sockaddr_un>() {
        return Err(Errno::EINVAL);
    }
    if i32::from(user::get::<u16>(at)?) != libc::AF_UNIX {
        return Err(Errno::EINVAL);
    }
    let mut name = user::bytes(at + 2, len - 2)?;
    if name.first().is_some_and(|&byte| byte != 0) {
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        name.truncate(end);
    }
    Ok(name)
}

/// A name as a `struct sockaddr_un`.
pub(in crate::kernel) fn address(name: &[u8]) -> Vec<u8> {
    let mut bytes = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
    bytes.extend(name);
    if name.first().is_some_and(|&byte| byte != 0) {
        bytes.push(0);
    }
    bytes
}

impl Kernel {
    /// Whose name that is (`unix_find_other`).
    pub(super) fn find_unix(&mut self, tid: Tid, name: &[u8], kind: i32) -> Result<u64, Errno> {
        let abstractly = name.first().is_none_or(|&byte| byte == 0);
        let found = if abstractly {
            let space = self.process(tid).space;
            self.names.get(&key(name, kind, space)).copied()
        } else {
            let inode = self.inode_at(tid, name)?;
            match self.inodes[inode].data {
                Data::Socket(id) => Some(id).filter(|&id| self.unixes.find(id).is_some()),
                _ => None,
            }
        };
        let other = found.ok_or(Errno::ECONNREFUSED)?;
        if self.unixes[other].kind == kind { Ok(other) } else { Err(Errno::EPROTOTYPE) }
    }

    /// `unix_may_send`: the other one is connected to nobody, or to this one.
    pub(super) fn may_send(&self, id: u64, other: u64) -> bool {
        let peer = self.unixes[other].peer;
        peer == 0 || peer == id
    }

    /// Five hexadecimal digits that nobody has (unix(7)).
    pub(super) fn autobind(&mut self, id: u64) -> Result<usize, Errno> {
        if !self.unixes[id].name.is_empty() {
            return Ok(0);
        }
        let name = (1..=0xf_ffff).map(|number| format!("\0{number:05x}").into_bytes());
        let socket = &self.unixes[id];
        let free = |name: &Vec<u8>| !self.names.contains_key(&socket.key(name));
        let name = name.into_iter().find(free).ok_or(Errno::ENOSPC)?;
        self.unixes[id].name = name.clone();
        let key = self.unixes[id].key(&name);
        self.names.insert(key, id);
        Ok(0)
    }

    /// One that asks for credentials gets a name before it connects or sends a message.
    pub(super) fn name_for_creds(&mut self, id: u64) -> Result<(), Errno> {
        if self.unixes[id].pass_creds { self.autobind(id).map(drop) } else { Ok(()) }
    }
}
