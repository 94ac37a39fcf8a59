//! What TCP does with what arrives (`tcp_rcv_established`, `tcp_rcv_state_process`).

use syscalls::Errno;

use super::super::objects::{Addr, Linked, Parcel, RCV, SEND, Segment, State, Tcp, Urgent};
use super::super::state::{Kernel, ready};

/// Until a SYN that found no room is sent again.
const AGAIN: u64 = 1_000_000_000;

impl Kernel {
    /// When the next thing arrives that is on its way.
    pub fn next_arrival(&self) -> Option<u64> {
        self.wire.first_key_value().map(|(&(time, _), _)| time)
    }

    /// Lets arrive what is due.
    pub(in crate::kernel) fn arrive(&mut self) {
        while let Some(entry) = self.wire.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let parcel = entry.remove();
            self.arrived(parcel);
        }
    }

    /// Lets arrive what is due for others than this socket: a call is under way on it, and what
    /// comes for it meanwhile waits for the call's end (the backlog of `release_sock`).
    pub(in crate::kernel) fn arrive_elsewhere(&mut self, id: u64) {
        loop {
            let due = self.wire.range(..=(self.now, u64::MAX));
            let found = due.into_iter().find(|(_, parcel)| parcel.target() != id).map(|(&key, _)| key);
            let Some(parcel) = found.and_then(|key| self.wire.remove(&key)) else { return };
            self.arrived(parcel);
        }
    }

    fn arrived(&mut self, parcel: Parcel) {
        self.changes += 1;
        match parcel {
            Parcel::Syn(client) => self.syn(client),
            Parcel::SynAck { to, from, allowed } => self.syn_ack(to, from, allowed),
            Parcel::Segment(segment) => self.segment(segment),
            Parcel::Reset { to } => self.reset(to),
            Parcel::Space(id) => {
                if self.tcps.find(id).is_some() {
                    self.tell_space(id);
                }
            }
            Parcel::Uncork(id) => {
                let now = self.now;
                let due = |tcp: &Tcp| tcp.cork_until.is_some_and(|until| until <= now);
                if self.tcps.find(id).is_some_and(due) {
                    self.output(id);
                }
            }
        }
    }

    fn syn(&mut self, client: u64) {
        let Some(from) = self.tcps.find(client).filter(|tcp| tcp.state == State::SynSent) else { return };
        let (local, remote, stamp) = (from.remote, from.local, from.stamp);
        let Some(listener) = self.listener_at(local) else {
            self.post(0, Parcel::Reset { to: client });
            return;
        };
        let entry = &self.tcps[listener];
        if entry.accepted.len() > entry.backlog {
            // It is dropped, and comes again.
            let time = self.now + AGAIN;
            self.post_at(time, Parcel::Syn(client));
            return;
        }
        let mut child = entry.clone();
        child.common.cookie = self.number();
        child.common.inode = self.number();
        child.common.file = None;
        child.common.error = None;
        child.state = State::SynRecv;
        child.linked = Linked::Connected;
        (child.local, child.remote) = (local, remote);
        (child.peer, child.listener) = (client, listener);
        child.accepted.clear();
        child.holds_port = false;
        // The client's clock when it was sent, which was just now.
        child.saved_syn = child.saves_syn.then_some(stamp.wrapping_add((self.now / 1_000_000) as u32));
        child.saves_syn = false;
        let id = self.tcps.add(child);
        let allowed = self.room(id);
        self.tcps[id].told = allowed;
        self.post(id, Parcel::SynAck { to: client, from: id, allowed });
    }

    /// Who listens on an address.
    fn listener_at(&self, at: Addr) -> Option<u64> {
        let on = |ip: u32| {
            let here = |tcp: &Tcp| tcp.state == State::Listen && tcp.local == Addr { ip, port: at.port };
            self.tcps.iter().find(|(_, tcp)| here(tcp)).map(|(id, _)| id)
        };
        on(at.ip).or_else(|| on(0))
    }

    fn syn_ack(&mut self, id: u64, from: u64, allowed: u64) {
        if self.tcps.find(id).is_none_or(|tcp| tcp.state != State::SynSent) {
            self.post(id, Parcel::Reset { to: from });
            return;
        }
        let tcp = &mut self.tcps[id];
        tcp.state = State::Established;
        tcp.connects = true;
        tcp.peer = from;
        tcp.allowed = allowed;
        let file = tcp.common.file;
        self.acknowledge(id);
        self.wake(file, ready::ALL);
        self.output(id);
    }

    /// The peer has said that the connection stands: it can be accepted.
    fn stands(&mut self, id: u64) -> bool {
        let listener = self.tcps[id].listener;
        if self.tcps.find(listener).is_none_or(|tcp| tcp.state != State::Listen) {
            self.reset_peer(id);
            self.tcps.remove(id);
            return false;
        }
        self.tcps[id].state = State::Established;
        self.tcps[listener].accepted.push_back(id);
        let file = self.tcps[listener].common.file;
        self.wake(file, ready::READABLE);
        // It has what its listener was shut for before that listened (tcp_rcv_state_process).
        if self.tcps[id].common.shut & SEND != 0 {
            self.send_fin(id);
        }
        true
    }

    fn segment(&mut self, segment: Segment) {
        let (id, from) = (segment.to, segment.from);
        let known = |tcp: &Tcp| tcp.state != State::Close && tcp.peer == from;
        if !self.tcps.find(id).is_some_and(known) {
            // To one that is not there any more: nothing is said to what only acknowledges.
            if (!segment.data.is_empty() || segment.fin) && self.tcps.find(from).is_some() {
                self.post(id, Parcel::Reset { to: from });
            }
            return;
        }
        if self.tcps[id].state == State::SynRecv && !self.stands(id) {
            return;
        }
        if !self.acknowledged(id, &segment) {
            return;
        }
        let tcp = &self.tcps[id];
        let closing = matches!(tcp.state, State::FinWait1 | State::FinWait2);
        let late = matches!(tcp.state, State::CloseWait | State::LastAck | State::Closing);
        if closing && tcp.common.shut & RCV != 0 && !segment.data.is_empty() {
            if let Some(urgent) = segment.urgent {
                self.urgent(id, urgent, &segment);
            }
            // RFC 1122: data for one that does not read any more is answered by a reset
            // (tcp_rcv_state_process).
            self.post(id, Parcel::Reset { to: from });
            self.reset(id);
            return;
        }
        if late || segment.data.is_empty() && !segment.fin {
            return;
        }
        self.take_data(id, segment);
    }

    /// What the other end has received of ours, and how much it has room for. False if the
    /// connection has ended by that.
    fn acknowledged(&mut self, id: u64, segment: &Segment) -> bool {
        let tcp = &mut self.tcps[id];
        tcp.allowed = tcp.allowed.max(segment.allowed);
        let data = segment.acked.min(tcp.written);
        let new = data.saturating_sub(tcp.acked) as usize;
        tcp.unacked.drain(..new.min(tcp.unacked.len()));
        tcp.acked = tcp.acked.max(data);
        let ended = tcp.fin_sent && !tcp.fin_acked && segment.acked > tcp.written;
        tcp.fin_acked |= ended;
        let (state, file) = (tcp.state, tcp.common.file);
        self.output(id);
        self.tell_space(id);
        if !ended {
            return true;
        }
        match state {
            State::FinWait1 => {
                self.tcps[id].state = State::FinWait2;
                self.tcps[id].common.shut |= SEND;
                self.wake(file, ready::ALL);
                true
            }
            State::Closing | State::LastAck => {
                self.tcp_done(id);
                false
            }
            _ => true,
        }
    }

    /// There is room to write for who has found none (`sk_stream_write_space`).
    pub(in crate::kernel) fn tell_space(&mut self, id: u64) {
        let tcp = &mut self.tcps[id];
        if tcp.no_space && tcp.is_writable() {
            tcp.no_space = false;
            let file = tcp.common.file;
            self.wake(file, ready::WRITABLE);
        }
        self.changes += 1;
    }

    /// Takes data and FIN.
    fn take_data(&mut self, id: u64, segment: Segment) {
        if let Some(urgent) = segment.urgent {
            self.urgent(id, urgent, &segment);
        }
        let tcp = &mut self.tcps[id];
        debug_assert_eq!(segment.at, tcp.received, "segments arrive in their order, each once");
        tcp.segments_in += u32::from(!segment.data.is_empty());
        tcp.queue.extend(&segment.data);
        tcp.received += segment.data.len() as u64;
        if segment.fin {
            self.fin(id);
        }
        let Some(tcp) = self.tcps.find(id) else { return };
        let ready = tcp.readable(tcp.common.lowat) || tcp.done;
        if let Some(file) = tcp.common.file
            && ready
        {
            self.wake(Some(file), ready::READABLE);
        }
        if self.tcps[id].state != State::Close && !segment.fin {
            self.acknowledge(id);
        }
    }

    /// An urgent pointer (`tcp_check_urg`, `tcp_urg`).
    fn urgent(&mut self, id: u64, at: u64, segment: &Segment) {
        let tcp = &mut self.tcps[id];
        let known = tcp.urgent != Urgent::None && at <= tcp.urgent_at;
        if tcp.copied <= at && at >= tcp.received && !known {
            // The urgent byte before it is skipped if the program has read up to it.
            if tcp.urgent_at == tcp.copied
                && tcp.urgent != Urgent::None
                && !tcp.common.inline
                && tcp.copied != tcp.received
            {
                tcp.copied += 1;
                tcp.queue.pop_front();
            }
            tcp.urgent = Urgent::NotYet;
            tcp.urgent_at = at;
        }
        let tcp = &mut self.tcps[id];
        if tcp.urgent == Urgent::NotYet
            && let Some(&byte) = segment.data.get(tcp.urgent_at.wrapping_sub(segment.at) as usize)
        {
            tcp.urgent = Urgent::Valid(byte);
            let file = tcp.common.file;
            self.wake(file, ready::READABLE);
        }
    }

    /// The other end sends no more (`tcp_fin`).
    fn fin(&mut self, id: u64) {
        let tcp = &mut self.tcps[id];
        tcp.received += 1;
        tcp.common.shut |= RCV;
        tcp.done = true;
        let file = tcp.common.file;
        let state = tcp.state;
        tcp.state = match state {
            State::Established | State::SynRecv => State::CloseWait,
            State::FinWait1 => State::Closing,
            other => other,
        };
        self.acknowledge(id);
        if state == State::FinWait2 {
            self.tcp_done(id);
        }
        if file.is_some() {
            self.wake(file, ready::ALL);
        }
    }

    /// The other end has cut the connection (`tcp_reset`).
    fn reset(&mut self, id: u64) {
        let Some(tcp) = self.tcps.find_mut(id) else { return };
        let error = match tcp.state {
            State::SynSent => Errno::ECONNREFUSED,
            State::CloseWait => Errno::EPIPE,
            State::Close | State::Listen => return,
            State::SynRecv => {
                self.tcps.remove(id);
                return;
            }
            _ => Errno::ECONNRESET,
        };
        tcp.common.error = Some(error);
        tcp.unacked.clear();
        let file = tcp.common.file;
        self.tcp_done(id);
        if file.is_some() {
            self.wake(file, ready::ERR);
        }
    }
}
