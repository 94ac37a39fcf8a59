//! UNIX sockets: names, connecting and ends (`af_unix.c`). [`messages`] has what goes through them.

mod messages;
mod names;

use std::collections::VecDeque;

use syscalls::Errno;

use super::objects::{Data, Inode, Kind, RCV, SEND, State, Unix};
use super::state::{Kernel, Outcome, Tid, ready};
use super::user;

pub(super) use messages::Parcels;
pub(super) use names::address;
use names::name_of;

impl Kernel {
    /// A new socket.
    pub(super) fn new_unix(&mut self, whose: (u32, u32), kind: i32) -> u64 {
        let room = self.limits.unix;
        let common = self.common(whose, room, room);
        let backlog = self.limits.datagrams;
        self.unixes.add(Unix {
            common,
            kind,
            state: State::Close,
            name: Vec::new(),
            peer: 0,
            peer_name: Vec::new(),
            peer_creds: None,
            queue: VecDeque::new(),
            weight: 0,
            backlog,
            accepted: VecDeque::new(),
            pass_creds: false,
            pass_rights: true,
            filter: None,
        })
    }

    /// Connects two new sockets with each other.
    pub(super) fn unix_pair(&mut self, tid: Tid, one: u64, other: u64) {
        let creds = self.credentials(tid);
        for (id, peer) in [(one, other), (other, one)] {
            let socket = &mut self.unixes[id];
            (socket.peer, socket.peer_creds, socket.state) = (peer, Some(creds), State::Established);
        }
    }

    pub(super) fn unix_bind(&mut self, tid: Tid, id: u64, at: usize, len: usize) -> Result<usize, Errno> {
        let name = name_of(at, len)?;
        if name.is_empty() {
            return self.autobind(id);
        }
        if !self.unixes[id].name.is_empty() {
            return Err(Errno::EINVAL);
        }
        let key = self.unixes[id].key(&name);
        if self.names.contains_key(&key) || self.paths.contains_key(&name) {
            return Err(Errno::EADDRINUSE);
        }
        if name[0] != 0 {
            let (_, uid, _) = self.credentials(tid);
            let (mode, data) = (libc::S_IFSOCK | 0o755, Data::Socket(id));
            let inode = self.inodes.add(Inode { refs: 1, name: name.clone(), mode, uid, seals: 0, data });
            self.paths.insert(name.clone(), inode);
        }
        self.unixes[id].name = name;
        self.names.insert(key, id);
        Ok(0)
    }

    pub(super) fn unix_listen(&mut self, tid: Tid, id: u64, backlog: usize) -> Result<usize, Errno> {
        let creds = self.credentials(tid);
        let most = self.limits.somaxconn;
        let socket = &mut self.unixes[id];
        if socket.is_datagram() {
            return Err(Errno::EOPNOTSUPP);
        }
        if socket.name.is_empty() || !matches!(socket.state, State::Close | State::Listen) {
            return Err(Errno::EINVAL);
        }
        socket.backlog = backlog.min(most);
        socket.state = State::Listen;
        socket.peer_creds = Some(creds);
        self.changes += 1;
        Ok(0)
    }

    pub(super) fn unix_connect(
        &mut self,
        tid: Tid,
        id: u64,
        (at, len): (usize, usize),
        timeout: Option<u64>,
    ) -> Outcome {
        match self.try_connect(tid, id, at, len) {
            Err(Errno::EAGAIN) => self.block(tid, timeout, Errno::EAGAIN),
            result => Outcome::Done(result),
        }
    }

    fn try_connect(&mut self, tid: Tid, id: u64, at: usize, len: usize) -> Result<usize, Errno> {
        if self.unixes[id].is_datagram() {
            return self.connect_datagrams(tid, id, at, len);
        }
        let name = name_of(at, len)?;
        self.name_for_creds(id)?;
        let kind = self.unixes[id].kind;
        let listener = self.find_unix(tid, &name, kind)?;
        let there = &self.unixes[listener];
        if there.state != State::Listen || there.common.shut & RCV != 0 {
            return Err(Errno::ECONNREFUSED);
        }
        if self.unixes[listener].is_full() {
            return Err(Errno::EAGAIN);
        }
        match self.unixes[id].state {
            State::Close => {}
            State::Established => return Err(Errno::EISCONN),
            _ => return Err(Errno::EINVAL),
        }
        let creds = self.credentials(tid);
        let there = &self.unixes[listener];
        let (whose, named) = ((there.common.uid, there.common.space), there.name.clone());
        let (known, pass, rights) = (there.peer_creds, there.pass_creds, there.pass_rights);
        let child = self.new_unix(whose, kind);
        let socket = &mut self.unixes[child];
        (socket.name, socket.peer, socket.state) = (named, id, State::Established);
        (socket.peer_creds, socket.pass_creds, socket.pass_rights) = (Some(creds), pass, rights);
        let socket = &mut self.unixes[id];
        (socket.peer, socket.peer_creds, socket.state) = (child, known, State::Established);
        self.unixes[listener].accepted.push_back(child);
        let file = self.unixes[listener].common.file;
        self.wake(file, ready::READABLE);
        Ok(0)
    }

    /// `unix_dgram_connect`.
    fn connect_datagrams(&mut self, tid: Tid, id: u64, at: usize, len: usize) -> Result<usize, Errno> {
        let unspecified = len >= 2 && user::get::<u16>(at)? == libc::AF_UNSPEC as u16;
        let (mut other, mut state) = (0, State::Close);
        if !unspecified {
            let name = name_of(at, len)?;
            self.name_for_creds(id)?;
            (other, state) = (self.find_unix(tid, &name, libc::SOCK_DGRAM)?, State::Established);
            if !self.may_send(id, other) {
                return Err(Errno::EPERM);
            }
        }
        let before = self.unixes[id].peer;
        (self.unixes[id].peer, self.unixes[id].state) = (other, state);
        if before != 0 && before != other {
            self.disconnected(id, before);
        }
        Ok(0)
    }

    pub(super) fn unix_accept(&mut self, tid: Tid, id: u64, timeout: Option<u64>) -> Result<u64, Outcome> {
        let socket = &mut self.unixes[id];
        let refused = match socket.state {
            _ if socket.is_datagram() => Some(Errno::EOPNOTSUPP),
            State::Listen => None,
            _ => Some(Errno::EINVAL),
        };
        if let Some(errno) = refused {
            return Err(Outcome::Done(Err(errno)));
        }
        let Some(child) = socket.accepted.pop_front() else {
            // One that was shut says so to who would wait (unix_accept).
            if socket.common.shut & RCV != 0 && timeout != Some(0) {
                return Err(Outcome::Done(Err(Errno::EINVAL)));
            }
            return Err(self.block(tid, timeout, Errno::EAGAIN));
        };
        self.changes += 1;
        Ok(child)
    }

    pub(super) fn unix_shutdown(&mut self, id: u64, how: u8) -> Result<usize, Errno> {
        let socket = &mut self.unixes[id];
        socket.common.shut |= how;
        let (file, peer) = (socket.common.file, socket.peer);
        let connected = !socket.is_datagram();
        self.wake(file, ready::ALL);
        if connected && let Some(other) = self.unixes.find_mut(peer) {
            other.common.shut |=
                if how & RCV != 0 { SEND } else { 0 } | if how & SEND != 0 { RCV } else { 0 };
            let file = other.common.file;
            self.wake(file, ready::ALL);
        }
        Ok(0)
    }

    /// The last descriptor has gone (`unix_release_sock`); `never`: it was not even accepted.
    pub(super) fn unix_close(&mut self, id: u64, never: bool) {
        let Some(mut socket) = self.unixes.remove(id) else { return };
        let key = socket.key(&socket.name);
        if self.names.get(&key) == Some(&id) {
            self.names.remove(&key);
        }
        if !socket.name.is_empty() {
            for (_, other) in self.unixes.iter_mut() {
                if other.peer == id {
                    other.peer_name = socket.name.clone();
                }
                for message in other.queue.iter_mut().filter(|message| message.from == id) {
                    message.name = socket.name.clone();
                }
            }
        }
        if !socket.is_datagram()
            && let Some(peer) = self.unixes.find_mut(socket.peer)
        {
            peer.common.shut = RCV | SEND;
            // An empty message in front does not count (there it would be an urgent byte that was
            // read).
            let unread = socket.queue.len()
                > usize::from(socket.queue.front().is_some_and(|message| message.data.is_empty()));
            if unread || never {
                peer.common.error = Some(Errno::ECONNRESET);
            }
            let file = peer.common.file;
            self.wake(file, ready::ALL);
        }
        for message in socket.queue.drain(..) {
            self.forget_message(message);
        }
        for child in socket.accepted.drain(..) {
            self.unix_close(child, true);
        }
        self.changes += 1;
    }

    /// Own address, or the peer's.
    pub(super) fn unix_name(&self, id: u64, peer: bool) -> Result<Vec<u8>, Errno> {
        let socket = &self.unixes[id];
        if !peer {
            return Ok(address(&socket.name));
        }
        if socket.peer == 0 {
            return Err(Errno::ENOTCONN);
        }
        Ok(address(self.unixes.find(socket.peer).map_or(&socket.peer_name, |peer| &peer.name)))
    }

    /// FIONREAD and TIOCOUTQ (`unix_ioctl`).
    pub(super) fn unix_ioctl(&mut self, id: u64, request: usize, at: usize) -> Result<usize, Errno> {
        let socket = &self.unixes[id];
        let answer = if request != libc::FIONREAD as usize {
            socket.weight
        } else if socket.state == State::Listen {
            return Err(Errno::EINVAL);
        } else if socket.is_datagram() {
            socket.queue.front().map_or(0, |message| message.data.len())
        } else {
            socket.queue.iter().map(|message| message.data.len()).sum()
        };
        user::put(at, answer as i32)?;
        Ok(0)
    }

    pub(super) fn unix_of(&self, file: u64) -> Option<u64> {
        match self.files[file].kind {
            Kind::Unix(id) => Some(id),
            _ => None,
        }
    }
}
