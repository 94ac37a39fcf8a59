//! What a file is ready for (`tcp_poll`, `unix_poll`, `unix_dgram_poll`, `eventfd_poll`,
//! `ep_eventpoll_poll`).

use super::objects::{Kind, RCV, SEND, State, Urgent};
use super::state::{Kernel, ready};

impl Kernel {
    /// All that a file is ready for now; `None` if it cannot be asked (a file of a file system).
    pub(super) fn readiness(&mut self, file: u64, asked: u32) -> Option<u32> {
        Some(match &self.files[file].kind {
            Kind::Tcp(id) => self.tcp_readiness(*id),
            Kind::Unix(id) => self.unix_readiness(*id, asked),
            Kind::Counter(counter) => {
                let some = if counter.count > 0 { ready::IN } else { 0 };
                let full = if counter.count == u64::MAX { ready::ERR } else { 0 };
                let room = if counter.count < u64::MAX - 1 { ready::OUT } else { 0 };
                some | full | room
            }
            Kind::Set(_) => self.set_readiness(file),
            Kind::Netlink(answers) => {
                let some = if answers.is_empty() { 0 } else { ready::IN | ready::RDNORM };
                some | ready::WRITABLE
            }
            Kind::Process(pid) => {
                let ended = !self.processes.contains_key(pid);
                if ended { ready::IN | ready::RDNORM } else { 0 }
            }
            _ => return None,
        })
    }

    /// Whether a file can be asked.
    pub(super) fn can_poll(&self, file: u64) -> bool {
        !matches!(
            self.files[file].kind,
            Kind::Null | Kind::Random | Kind::Memory(_) | Kind::Disk(_) | Kind::Text(_) | Kind::Folder(_)
        )
    }

    fn tcp_readiness(&mut self, id: u64) -> u32 {
        let tcp = &mut self.tcps[id];
        if tcp.state == State::Listen {
            return if tcp.accepted.is_empty() { 0 } else { ready::IN | ready::RDNORM };
        }
        let (shut, mut mask) = (tcp.common.shut, 0);
        if shut == RCV | SEND || tcp.state == State::Close {
            mask |= ready::HUP;
        }
        if shut & RCV != 0 {
            mask |= ready::IN | ready::RDNORM | ready::RDHUP;
        }
        if !matches!(tcp.state, State::SynSent | State::SynRecv) {
            let marked = tcp.urgent != Urgent::None && tcp.urgent_at == tcp.copied && !tcp.common.inline;
            if tcp.readable(tcp.common.lowat + usize::from(marked)) {
                mask |= ready::IN | ready::RDNORM;
            }
            if shut & SEND != 0 || tcp.is_writable() {
                mask |= ready::OUT | ready::WRNORM;
            } else {
                tcp.no_space = true;
            }
            if matches!(tcp.urgent, Urgent::Valid(_)) {
                mask |= ready::PRI;
            }
        }
        if tcp.common.error.is_some() {
            mask |= ready::ERR;
        }
        mask
    }

    fn unix_readiness(&mut self, id: u64, asked: u32) -> u32 {
        let socket = &self.unixes[id];
        let (shut, mut mask) = (socket.common.shut, 0);
        if socket.common.error.is_some() {
            mask |= ready::ERR;
        }
        if shut == RCV | SEND {
            mask |= ready::HUP;
        }
        if shut & RCV != 0 {
            mask |= ready::IN | ready::RDNORM | ready::RDHUP;
        }
        if !socket.queue.is_empty() || !socket.accepted.is_empty() {
            mask |= ready::IN | ready::RDNORM;
        }
        if !socket.is_datagram() && socket.state == State::Close {
            mask |= ready::HUP;
        }
        let other = self.unixes.find(socket.peer);
        let blocked = !socket.is_stream()
            && asked & ready::WRITABLE != 0
            && other.is_some_and(|other| other.peer != id && other.is_full());
        if socket.is_writable() && !blocked {
            mask |= ready::WRITABLE;
        }
        mask
    }

    /// Whether anything in an epoll set is ready: what is not any more goes off its list.
    fn set_readiness(&mut self, set: u64) -> u32 {
        loop {
            let Kind::Set(entry) = &self.files[set].kind else { return 0 };
            let Some(&(file, fd)) = entry.ready.front() else { return 0 };
            let events = entry.items.get(&(file, fd)).map_or(0, |item| item.events);
            if self.readiness(file, events).unwrap_or(0) & events != 0 {
                return ready::IN | ready::RDNORM;
            }
            if let Kind::Set(entry) = &mut self.files[set].kind {
                entry.ready.pop_front();
            }
        }
    }
}
