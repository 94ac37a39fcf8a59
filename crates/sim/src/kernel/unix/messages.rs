//! What goes through UNIX sockets: bytes, messages, descriptors and credentials
//! (`unix_stream_sendmsg`, `unix_dgram_sendmsg` and what receives them).

use std::collections::VecDeque;

use syscalls::Errno;

use super::super::objects::{Message, RCV, SEND, State, Unix};
use super::super::state::{Kernel, Outcome, Patience, Tid, ready};
use super::super::user::Places;
use super::names::name_of;

/// What comes with a message.
#[derive(Default)]
pub(in crate::kernel) struct Parcels {
    pub(in crate::kernel) rights: Vec<u64>,
    pub(in crate::kernel) creds: Option<(u32, u32, u32)>,
    /// The sender's address.
    pub(in crate::kernel) name: Option<Vec<u8>>,
    /// Of the message that was received: MSG_TRUNC.
    pub(in crate::kernel) flags: i32,
}

/// Of a message of which it was not noted: no process, and the overflow user.
const NOBODY: (u32, u32, u32) = (0, 65534, 65534);

/// Whether the descriptors that come with a message are let in (SO_PASSRIGHTS).
fn other_takes(other: &Unix, parcels: &Parcels) -> bool {
    other.pass_rights || parcels.rights.is_empty()
}

/// What a message weighs in the sender's room: the kernel counts its own memory.
fn weight(len: usize) -> usize {
    (len + 320).next_power_of_two().max(512) + 256
}

impl Kernel {
    /// Sends; `parcels.rights` are files whose use has been counted.
    pub(in crate::kernel) fn unix_send(
        &mut self,
        tid: Tid,
        id: u64,
        from: &Places,
        (name, len): (usize, usize),
        Patience { flags, timeout }: Patience,
        parcels: &Parcels,
    ) -> Outcome {
        if flags & libc::MSG_OOB != 0 {
            return Outcome::Done(Err(Errno::EOPNOTSUPP));
        }
        let socket = &self.unixes[id];
        let result = if socket.is_stream() {
            if len > 0 {
                let connected = socket.state == State::Established;
                Err(if connected { Errno::EISCONN } else { Errno::EOPNOTSUPP })
            } else {
                self.send_stream(tid, id, from, flags, parcels)
            }
        } else {
            self.send_message(tid, id, from, (name, len), timeout, parcels)
        };
        let done = self.sleep(tid).done;
        match result {
            Err(Errno::EAGAIN) if self.wait(tid, timeout) => Outcome::Sleep,
            Err(_) if done > 0 => Outcome::Done(Ok(done)),
            result => Outcome::Done(result),
        }
    }

    /// `sock_alloc_send_pskb`: whether there is room for a message.
    fn unix_room(&mut self, id: u64) -> Result<(), Errno> {
        let common = &mut self.unixes[id].common;
        if let Some(error) = common.error.take() {
            return Err(error);
        }
        if common.shut & SEND != 0 {
            return Err(Errno::EPIPE);
        }
        let socket = &self.unixes[id];
        if socket.weight < socket.common.sndbuf { Ok(()) } else { Err(Errno::EAGAIN) }
    }

    fn send_stream(
        &mut self,
        tid: Tid,
        id: u64,
        from: &Places,
        flags: i32,
        parcels: &Parcels,
    ) -> Result<usize, Errno> {
        let broken = |kernel: &mut Kernel| {
            if flags & libc::MSG_NOSIGNAL == 0 && kernel.sleep(tid).done == 0 {
                kernel.raise(tid, libc::SIGPIPE);
            }
            Err(Errno::EPIPE)
        };
        let socket = &self.unixes[id];
        let peer = socket.peer;
        if peer == 0 {
            return Err(Errno::ENOTCONN);
        }
        if socket.common.shut & SEND != 0 {
            return broken(self);
        }
        let total = from.len();
        while self.sleep(tid).done < total {
            let done = self.sleep(tid).done;
            self.unix_room(id)?;
            if self.unixes.find(peer).is_none_or(|peer| peer.common.shut & RCV != 0) {
                self.unsent(id);
                return broken(self);
            }
            if !other_takes(&self.unixes[peer], parcels) {
                self.unsent(id);
                return Err(Errno::EPERM);
            }
            let most = (self.unixes[id].common.sndbuf / 2).saturating_sub(64).min(32_768);
            let bytes = from.gather(done, most)?;
            let sent = bytes.len();
            self.enqueue(tid, id, peer, bytes, if done == 0 { Some(parcels) } else { None });
            self.sleep(tid).done = done + sent;
        }
        Ok(total)
    }

    fn send_message(
        &mut self,
        tid: Tid,
        id: u64,
        from: &Places,
        (at, len): (usize, usize),
        timeout: Option<u64>,
        parcels: &Parcels,
    ) -> Result<usize, Errno> {
        let (mut at, mut len) = (at, len);
        if !self.unixes[id].is_datagram() {
            if let Some(error) = self.unixes[id].common.error.take() {
                return Err(error);
            }
            if self.unixes[id].state != State::Established {
                return Err(Errno::ENOTCONN);
            }
            (at, len) = (0, 0);
        }
        let named = if len > 0 { Some(name_of(at, len)?) } else { None };
        self.name_for_creds(id)?;
        if from.len() > self.unixes[id].common.sndbuf - 32 {
            return Err(Errno::EMSGSIZE);
        }
        self.unix_room(id)?;
        let bytes = from.gather(0, usize::MAX)?;
        let sent = self.deliver(tid, id, named, bytes, parcels);
        // Of one that waits for room at its peer the message is kept.
        if sent.is_err() && (sent != Err(Errno::EAGAIN) || timeout == Some(0)) {
            self.unsent(id);
        }
        sent
    }

    /// A message has been made, and goes nowhere: with its end there is room again, and who waits
    /// for that is told as if there had been none (`sock_wfree`).
    fn unsent(&mut self, id: u64) {
        if self.unixes[id].is_writable() {
            let file = self.unixes[id].common.file;
            self.wake(file, ready::WRITABLE);
        }
    }

    /// Hands a message over, to its address or to the peer.
    fn deliver(
        &mut self,
        tid: Tid,
        id: u64,
        named: Option<Vec<u8>>,
        bytes: Vec<u8>,
        parcels: &Parcels,
    ) -> Result<usize, Errno> {
        let mut peer = self.unixes[id].peer;
        if named.is_none() && peer == 0 {
            return Err(Errno::ENOTCONN);
        }
        if let Some(name) = named {
            peer = self.find_unix(tid, &name, libc::SOCK_DGRAM)?;
        }
        let Some(other) = self.unixes.find(peer) else {
            // It has gone: a datagram socket is connected no more.
            (self.unixes[id].peer, self.unixes[id].state) = (0, State::Close);
            self.disconnected(id, peer);
            return Err(Errno::ECONNREFUSED);
        };
        if !other.lets_in(&bytes) {
            self.unsent(id);
            return Ok(bytes.len());
        }
        if !self.may_send(id, peer) || !other_takes(other, parcels) {
            return Err(Errno::EPERM);
        }
        let other = &self.unixes[peer];
        if other.common.shut & RCV != 0 {
            return Err(Errno::EPIPE);
        }
        if peer != id && other.peer != id && other.is_full() {
            return Err(Errno::EAGAIN);
        }
        let sent = bytes.len();
        self.enqueue(tid, id, peer, bytes, Some(parcels));
        Ok(sent)
    }

    /// A datagram socket has another peer than before, or none: what is in its queue is lost, and
    /// the one before is told (`unix_dgram_disconnected`).
    pub(super) fn disconnected(&mut self, id: u64, before: u64) {
        let queue = core::mem::take(&mut self.unixes[id].queue);
        if queue.is_empty() {
            return;
        }
        for message in queue {
            self.forget_message(message);
        }
        if let Some(other) = self.unixes.find_mut(before).filter(|other| other.peer == id) {
            other.common.error = Some(Errno::ECONNRESET);
            let file = other.common.file;
            self.wake(file, ready::ERR);
        }
    }

    fn enqueue(&mut self, tid: Tid, id: u64, peer: u64, bytes: Vec<u8>, parcels: Option<&Parcels>) {
        let creds = parcels.and_then(|parcels| parcels.creds);
        // Who sends is noted where either end asks for it, or the other one is not accepted yet
        // (unix_maybe_add_creds).
        let asks = |socket: &Unix| socket.pass_creds;
        let noted =
            asks(&self.unixes[id]) || asks(&self.unixes[peer]) || self.unixes[peer].common.file.is_none();
        let creds = creds.unwrap_or_else(|| if noted { self.credentials(tid) } else { NOBODY });
        let rights = parcels.map(|parcels| parcels.rights.clone()).unwrap_or_default();
        rights.iter().for_each(|&file| self.hold(file));
        let weight = weight(bytes.len());
        let socket = &mut self.unixes[id];
        socket.weight += weight;
        let name = socket.name.clone();
        let data = VecDeque::from(bytes);
        let entry = &mut self.unixes[peer];
        entry.queue.push_back(Message { data, from: id, name, creds, rights, weight, peeked: false });
        let file = entry.common.file;
        self.wake(file, ready::READABLE);
    }

    /// A message has been received, or never will be: its sender has room again
    /// (`unix_write_space`).
    pub(in crate::kernel) fn forget_message(&mut self, message: Message) {
        message.rights.iter().for_each(|&file| self.put(file));
        if let Some(sender) = self.unixes.find_mut(message.from) {
            sender.weight -= message.weight;
            let file = sender.common.file;
            if sender.is_writable() {
                self.wake(file, ready::WRITABLE);
            }
        }
        self.changes += 1;
    }

    /// Receives; files that came along are the caller's to give numbers to, and their use has been
    /// counted.
    pub(in crate::kernel) fn unix_receive(
        &mut self,
        tid: Tid,
        id: u64,
        to: &Places,
        patience: Patience,
        parcels: &mut Parcels,
    ) -> Outcome {
        let Patience { flags, timeout } = patience;
        let socket = &self.unixes[id];
        if socket.is_stream() {
            return self.receive_stream(tid, id, to, patience, parcels);
        }
        if !socket.is_datagram() && socket.state != State::Established {
            return Outcome::Done(Err(Errno::ENOTCONN));
        }
        if flags & libc::MSG_OOB != 0 {
            return Outcome::Done(Err(Errno::EOPNOTSUPP));
        }
        let peek = flags & libc::MSG_PEEK != 0;
        let socket = &mut self.unixes[id];
        if let Some(error) = socket.common.error.take() {
            return Outcome::Done(Err(error));
        }
        let mut skip = if peek { socket.common.peek_at.unwrap_or(0) } else { 0 };
        let mut at = 0;
        // An empty one is passed over only if it was looked at before: here always if there is
        // something to skip.
        while peek
            && let Some(message) = socket.queue.get_mut(at)
            && skip >= message.data.len()
            && (skip > 0 || socket.common.peek_at.is_some() && message.peeked)
        {
            skip -= message.data.len();
            at += 1;
        }
        let Some(message) = socket.queue.get_mut(at) else {
            let over = socket.common.shut & RCV != 0;
            if over && (!socket.is_datagram() || timeout != Some(0)) {
                return Outcome::Done(Ok(0));
            }
            return self.block(tid, timeout, Errno::EAGAIN);
        };
        message.peeked |= peek;
        let (whole, bytes) = (message.data.len(), &message.data.make_contiguous()[skip..]);
        let len = bytes.len();
        let copied = match to.scatter(0, bytes) {
            Ok(copied) => copied,
            Err(errno) => return Outcome::Done(Err(errno)),
        };
        socket.common.move_peek(if peek { copied } else { whole }, peek);
        if copied < len {
            parcels.flags |= libc::MSG_TRUNC;
        }
        let (from, name) = (message.from, message.name.clone());
        parcels.creds = Some(message.creds);
        parcels.rights = message.rights.clone();
        let rights = parcels.rights.clone();
        rights.iter().for_each(|&file| self.hold(file));
        parcels.name = Some(self.sender_name(from, name));
        if !peek && let Some(message) = self.unixes[id].queue.pop_front() {
            self.forget_message(message);
        }
        Outcome::Done(Ok(if flags & libc::MSG_TRUNC != 0 { len } else { copied }))
    }

    /// Copies what is there, message by message: whether there was any, and whether that ends the
    /// call, whatever else it was to wait for.
    fn stream_parts(
        &mut self,
        id: u64,
        to: &Places,
        peek: bool,
        done: &mut usize,
        parcels: &mut Parcels,
    ) -> Result<(bool, bool), Errno> {
        let (total, mut at, mut seen) = (to.len(), 0, false);
        let mut skip = if peek { self.unixes[id].common.peek_at.unwrap_or(0) } else { 0 };
        while let Some(message) = self.unixes[id].queue.get_mut(at) {
            if peek && skip >= message.data.len() {
                skip -= message.data.len();
                at += 1;
                continue;
            }
            let (creds, from, name) = (message.creds, message.from, message.name.clone());
            if seen && parcels.creds != Some(creds) && self.unixes[id].pass_creds {
                return Ok((seen, true));
            }
            parcels.creds = Some(creds);
            seen = true;
            if parcels.name.is_none() {
                parcels.name = Some(self.sender_name(from, name));
            }
            let socket = &mut self.unixes[id];
            let message = &mut socket.queue[at];
            let part = (message.data.len() - skip).min(total - *done);
            to.scatter(*done, &message.data.make_contiguous()[skip..skip + part])?;
            *done += part;
            skip = 0;
            socket.common.move_peek(part, peek);
            let rights = if peek { message.rights.clone() } else { core::mem::take(&mut message.rights) };
            // Who peeks looks at all messages up to one with files, and gets these, though there
            // may be no room for its bytes.
            let ended = !rights.is_empty() || *done == total && !peek;
            if peek {
                rights.iter().for_each(|&file| self.hold(file));
                at += 1;
                parcels.rights.extend(rights);
            } else {
                parcels.rights.extend(rights);
                message.data.drain(..part);
                if !message.data.is_empty() {
                    return Ok((seen, true));
                }
                if let Some(message) = self.unixes[id].queue.pop_front() {
                    self.forget_message(message);
                }
            }
            if ended {
                return Ok((seen, true));
            }
        }
        Ok((seen, false))
    }

    /// The name that a sender has now, or had when it ended (`unix_copy_addr`).
    fn sender_name(&self, from: u64, name: Vec<u8>) -> Vec<u8> {
        self.unixes.find(from).map_or(name, |sender| sender.name.clone())
    }

    /// `unix_stream_read_generic`.
    fn receive_stream(
        &mut self,
        tid: Tid,
        id: u64,
        to: &Places,
        patience: Patience,
        parcels: &mut Parcels,
    ) -> Outcome {
        let Patience { flags, timeout } = patience;
        if self.unixes[id].state != State::Established {
            return Outcome::Done(Err(Errno::EINVAL));
        }
        if flags & libc::MSG_OOB != 0 {
            // Nothing urgent is ever sent (unix_stream_recv_urg).
            return Outcome::Done(Err(Errno::EINVAL));
        }
        if self.unixes[id].queue.is_empty() {
            // At the end, too, it says who has sent: nobody, as root.
            parcels.creds = Some((0, 0, 0));
        }
        let (peek, total) = (flags & libc::MSG_PEEK != 0, to.len());
        let lowat = self.unixes[id].common.lowat.min(total);
        let target = if flags & libc::MSG_WAITALL != 0 { total } else { lowat }.max(1);
        let mut done = if peek { 0 } else { self.sleep(tid).done };
        let (seen, ended) = match self.stream_parts(id, to, peek, &mut done, parcels) {
            Ok(parts) => parts,
            Err(errno) => return Outcome::Done(if done > 0 { Ok(done) } else { Err(errno) }),
        };
        if !peek {
            self.sleep(tid).done = done;
        }
        if ended || done >= target || peek && seen {
            return Outcome::Done(Ok(done));
        }
        let common = &mut self.unixes[id].common;
        let error = common.error.take();
        let over = common.shut & RCV != 0;
        match error {
            _ if done > 0 && (error.is_some() || over || !self.wait(tid, timeout)) => Outcome::Done(Ok(done)),
            _ if done > 0 => Outcome::Sleep,
            Some(error) => Outcome::Done(Err(error)),
            None if over => Outcome::Done(Ok(0)),
            None => self.block(tid, timeout, Errno::EAGAIN),
        }
    }
}

impl Unix {
    /// Runs the filter of the socket, as far as filters compare words and half words (bpf(4)); what
    /// it does not know lets everything in.
    fn lets_in(&self, bytes: &[u8]) -> bool {
        let Some(filter) = &self.filter else { return true };
        let (mut at, mut value) = (0, 0u32);
        while let Some(&(code, yes, no, k)) = filter.get(at) {
            at += 1;
            let code = u32::from(code);
            if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS {
                let Some(word) = bytes.get(k as usize..k as usize + 4) else { return false };
                value = u32::from_be_bytes(core::array::from_fn(|i| word[i]));
            } else if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K {
                at += usize::from(if value == k { yes } else { no });
            } else if code == libc::BPF_RET | libc::BPF_K {
                return k != 0;
            } else {
                return true;
            }
        }
        true
    }
}
