//! What TCP sends: segments, FIN, resets, and how much the other end may send.

use super::super::objects::{Parcel, RCV, SEND, Segment, State, Urgent};
use super::super::state::{Kernel, ready};
use syscalls::Errno;

/// Bytes of a segment on the loopback device, at most.
const SEGMENT: usize = 65_483;
/// How long a cork holds a segment that is not full (tcp(7)).
const CORK: u64 = 200_000_000;

impl Kernel {
    /// Puts something on its way, behind what `from` has sent before.
    pub(in crate::kernel) fn post(&mut self, from: u64, parcel: Parcel) {
        let delay = match self.limits.delay {
            0 => 0,
            most => self.dice.up_to(most),
        };
        let mut time = self.now.saturating_add(delay);
        if let Some(tcp) = self.tcps.find_mut(from) {
            time = time.max(tcp.arrives);
            tcp.arrives = time;
        }
        self.post_at(time, parcel);
    }

    pub(in crate::kernel) fn post_at(&mut self, time: u64, parcel: Parcel) {
        self.sent += 1;
        self.wire.insert((time, self.sent), parcel);
    }

    /// Up to where the other end may send.
    pub(in crate::kernel) fn room(&self, id: u64) -> u64 {
        let tcp = &self.tcps[id];
        let free = tcp.common.rcvbuf.saturating_sub(tcp.queue.len());
        // Nothing rather than little (RFC 1122: silly windows).
        let free = if free < tcp.common.rcvbuf / 16 { 0 } else { free };
        (tcp.received + free as u64).max(tcp.told)
    }

    /// Sends what there is and may be sent.
    pub(in crate::kernel) fn output(&mut self, id: u64) {
        loop {
            let tcp = &self.tcps[id];
            if !matches!(
                tcp.state,
                State::Established
                    | State::CloseWait
                    | State::FinWait1
                    | State::LastAck
                    | State::Closing
                    | State::SynRecv
            ) || tcp.peer == 0
            {
                return;
            }
            let most = tcp.edges.front().copied().unwrap_or(u64::MAX).min(tcp.written).min(tcp.allowed);
            let mut len = (most.saturating_sub(tcp.sent) as usize).min(SEGMENT);
            if len > 1 && self.limits.partial && self.limits.delay > 0 {
                len = 1 + self.dice.up_to(len as u64 - 1) as usize;
            }
            let tcp = &self.tcps[id];
            let last = tcp.sent + len as u64 == tcp.written;
            if len > 0 && last && len < SEGMENT && self.held_together(id) {
                return;
            }
            let tcp = &self.tcps[id];
            let fin = last && tcp.fin && !tcp.fin_sent;
            if len == 0 && !fin {
                return;
            }
            self.send_segment(id, len, fin);
        }
    }

    /// Whether a cork holds what does not fill a segment.
    fn held_together(&mut self, id: u64) -> bool {
        let now = self.now;
        let tcp = &mut self.tcps[id];
        if !tcp.corked || tcp.fin {
            return false;
        }
        match tcp.cork_until {
            Some(until) => now < until,
            None => {
                tcp.cork_until = Some(now + CORK);
                self.post_at(now + CORK, Parcel::Uncork(id));
                true
            }
        }
    }

    fn send_segment(&mut self, id: u64, len: usize, fin: bool) {
        let allowed = self.room(id);
        let tcp = &mut self.tcps[id];
        let start = (tcp.sent - tcp.acked) as usize;
        let data: Vec<u8> = tcp.unacked.range(start..start + len).copied().collect();
        let urgent = (tcp.urgent_sent > tcp.sent).then(|| tcp.urgent_sent - 1);
        let segment =
            Segment { to: tcp.peer, from: id, at: tcp.sent, data, urgent, fin, acked: tcp.received, allowed };
        tcp.sent += len as u64;
        tcp.segments_out += u32::from(len > 0);
        tcp.edges.retain(|&edge| edge > tcp.sent);
        tcp.fin_sent |= fin;
        tcp.told = allowed;
        tcp.cork_until = None;
        self.post(id, Parcel::Segment(segment));
    }

    /// `tcp_close_state` and `tcp_send_fin`.
    pub(in crate::kernel) fn send_fin(&mut self, id: u64) {
        let tcp = &mut self.tcps[id];
        let (state, fin) = match tcp.state {
            State::Established | State::SynRecv => (State::FinWait1, true),
            State::CloseWait => (State::LastAck, true),
            State::SynSent | State::Listen => (State::Close, false),
            other => (other, false),
        };
        tcp.state = state;
        if fin {
            tcp.fin = true;
            self.output(id);
        }
    }

    /// Says what has come, and how much may come.
    pub(in crate::kernel) fn acknowledge(&mut self, id: u64) {
        let allowed = self.room(id);
        let tcp = &mut self.tcps[id];
        if tcp.peer == 0 || matches!(tcp.state, State::Listen | State::SynSent) {
            return;
        }
        let (to, at, acked) = (tcp.peer, tcp.sent + u64::from(tcp.fin_sent), tcp.received);
        tcp.told = allowed;
        let segment =
            Segment { to, from: id, at, data: Vec::new(), urgent: None, fin: false, acked, allowed };
        self.post(id, Parcel::Segment(segment));
    }

    /// After something was read: tells the other end if it may send much more than it knows of
    /// (`tcp_cleanup_rbuf`).
    pub(in crate::kernel) fn tell_room(&mut self, id: u64) {
        let tcp = &self.tcps[id];
        if tcp.common.shut & RCV != 0 || tcp.state == State::Close {
            return;
        }
        let known = tcp.told.saturating_sub(tcp.received);
        let room = self.room(id).saturating_sub(tcp.received);
        if 2 * known <= tcp.common.rcvbuf as u64 && room > 0 && room >= 2 * known {
            self.acknowledge(id);
        }
    }

    /// Sends a reset.
    pub(in crate::kernel) fn reset_peer(&mut self, id: u64) {
        let to = self.tcps[id].peer;
        if to != 0 {
            self.post(id, Parcel::Reset { to });
        }
    }

    /// The connection is over (`tcp_done`).
    pub(in crate::kernel) fn tcp_done(&mut self, id: u64) {
        let tcp = &mut self.tcps[id];
        tcp.state = State::Close;
        tcp.holds_port = tcp.bound;
        tcp.common.shut = RCV | SEND;
        match tcp.common.file {
            Some(file) => self.wake(Some(file), ready::ALL),
            None if tcp.listener == 0 => drop(self.tcps.remove(id)),
            None => self.changes += 1,
        }
    }

    /// The first half of [`Kernel::disconnect`].
    pub(in crate::kernel) fn cut(&mut self, id: u64) {
        let before = self.tcps[id].state;
        self.tcps[id].state = State::Close;
        let resets = matches!(
            before,
            State::Established | State::CloseWait | State::FinWait1 | State::FinWait2 | State::SynRecv
        );
        if resets {
            self.reset_peer(id);
        }
        let tcp = &mut self.tcps[id];
        if resets || before == State::SynSent {
            tcp.common.error = Some(Errno::ECONNRESET);
        }
        tcp.queue.clear();
        // A new stream begins at 0.
        (tcp.copied, tcp.received, tcp.acked, tcp.sent, tcp.written, tcp.urgent_sent) = (0, 0, 0, 0, 0, 0);
        (tcp.allowed, tcp.told, tcp.connects) = (0, 0, false);
        tcp.urgent = Urgent::None;
        tcp.common.peek_at = None;
        tcp.unacked.clear();
        tcp.remote = Default::default();
        // The address was chosen by connect() (inet_bhash2_reset_saddr).
        if !tcp.bound_ip {
            tcp.local.ip = 0;
        }
        tcp.peer = 0;
        tcp.common.shut = 0;
        tcp.done = false;
        tcp.fin = false;
        tcp.fin_sent = false;
        tcp.fin_acked = false;
        if before != State::Close {
            tcp.holds_port = tcp.bound;
        }
    }
}
