//! TCP: sending, receiving, and the ends of a connection (`tcp_sendmsg_locked`,
//! `tcp_recvmsg_locked`, `inet_shutdown`, `__tcp_close`).

mod connect;
mod input;
mod output;

use syscalls::Errno;

use super::objects::{Linked, Parcel, RCV, SEND, State, Urgent};
use super::state::{Kernel, Outcome, Patience, Tid, ready};
use super::user::{self, Places};

impl Kernel {
    pub(super) fn tcp_send(&mut self, tid: Tid, id: u64, from: &Places, patience: Patience) -> Outcome {
        let begun = self.sleep(tid).done;
        let tcp = &mut self.tcps[id];
        let stands = matches!(tcp.state, State::Established | State::CloseWait);
        if begun > 0 && (!stands || tcp.common.error.is_some() || tcp.common.shut & SEND != 0) {
            // sk_stream_wait_memory(): the error is left for the next call.
            return Outcome::Done(Ok(begun));
        }
        if !stands {
            if let Some(error) = tcp.common.error.take() {
                return self.send_error(tid, id, error, patience.flags);
            }
            if !matches!(tcp.state, State::SynSent | State::SynRecv) {
                return self.send_error(tid, id, Errno::EPIPE, patience.flags);
            }
            return self.block(tid, patience.timeout, Errno::EAGAIN);
        }
        if tcp.common.error.is_some() || tcp.common.shut & SEND != 0 {
            return self.send_error(tid, id, Errno::EPIPE, patience.flags);
        }
        let (mut done, total) = (begun, from.len());
        let more = patience.flags & libc::MSG_MORE != 0;
        while done < total {
            let tcp = &self.tcps[id];
            let mut room = tcp.common.sndbuf.saturating_sub(tcp.unacked.len()).min(total - done);
            let cut = self.limits.partial && room > 1 && self.dice.up_to(3) == 0;
            if cut {
                room = 1 + self.dice.up_to(room as u64 - 1) as usize;
            }
            if room > 0 {
                let bytes = match from.gather(done, room) {
                    Ok(bytes) => bytes,
                    Err(_) if done > 0 => break,
                    Err(errno) => return Outcome::Done(Err(errno)),
                };
                done += bytes.len();
                self.sleep(tid).done = done;
                let tcp = &mut self.tcps[id];
                tcp.unacked.extend(&bytes);
                tcp.written += bytes.len() as u64;
                if done == total && patience.flags & libc::MSG_OOB != 0 {
                    tcp.urgent_sent = tcp.written;
                }
                if done == total && patience.flags & libc::MSG_EOR != 0 {
                    tcp.edges.push_back(tcp.written);
                }
                // What is announced to go on is held together as by a cork.
                let corked = tcp.corked;
                tcp.corked |= more;
                self.output(id);
                self.tcps[id].corked = corked;
            }
            if done < total && (room == 0 || cut) {
                self.tcps[id].no_space = true;
                if cut {
                    let now = self.now;
                    self.post_at(now, Parcel::Space(id));
                }
                if self.wait(tid, patience.timeout) {
                    return Outcome::Sleep;
                }
                return Outcome::Done(if done > 0 { Ok(done) } else { Err(Errno::EAGAIN) });
            }
        }
        Outcome::Done(Ok(done))
    }

    /// `sk_stream_error`: an error that is known takes the place of EPIPE.
    fn send_error(&mut self, tid: Tid, id: u64, error: Errno, flags: i32) -> Outcome {
        let mut error = error;
        if error == Errno::EPIPE {
            error = self.tcps[id].common.error.take().unwrap_or(error);
        }
        if error == Errno::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
            self.raise(tid, libc::SIGPIPE);
        }
        Outcome::Done(Err(error))
    }

    /// Receives; the flags of the message that has been received go to `shown`.
    pub(super) fn tcp_receive(
        &mut self,
        tid: Tid,
        id: u64,
        to: &Places,
        patience: Patience,
        shown: &mut i32,
    ) -> Outcome {
        let flags = patience.flags;
        if self.tcps[id].state == State::Listen {
            return Outcome::Done(Err(Errno::ENOTCONN));
        }
        if flags & libc::MSG_ERRQUEUE != 0 {
            // inet_recv_error(): nothing is ever in that queue here.
            return Outcome::Done(Err(Errno::EAGAIN));
        }
        if flags & libc::MSG_OOB != 0 {
            return Outcome::Done(self.receive_urgent(id, to, flags, shown));
        }
        let (peek, total) = (flags & libc::MSG_PEEK != 0, to.len());
        let all = flags & libc::MSG_WAITALL != 0;
        let target = if all { total } else { self.tcps[id].common.lowat.min(total) }.max(1);
        let (mut done, begun) = if peek { (0, 0) } else { (self.sleep(tid).done, self.sleep(tid).done) };
        let offset = if peek { self.tcps[id].common.peek_at.unwrap_or(0) as u64 } else { 0 };
        let mut at = self.tcps[id].copied + offset;
        let ended = self.copy_out(id, to, flags, &mut at, &mut done);
        if matches!(ended, Err(Errno::EFAULT)) {
            return Outcome::Done(if done > 0 { Ok(done) } else { Err(Errno::EFAULT) });
        }
        if !peek {
            self.sleep(tid).done = done;
            if done > begun {
                let tcp = &mut self.tcps[id];
                tcp.common.peek_at = tcp.common.peek_at.map(|at| at.saturating_sub(done - begun));
                self.changes += 1;
                self.tell_room(id);
            }
        } else if done > 0 {
            let tcp = &mut self.tcps[id];
            tcp.common.peek_at = tcp.common.peek_at.map(|at| at + done);
        }
        if ended.is_ok_and(|ended| ended) || done >= target || done == total && done > 0 {
            return Outcome::Done(Ok(done));
        }
        let tcp = &mut self.tcps[id];
        let over = tcp.common.shut & RCV != 0 || tcp.state == State::Close;
        if done > 0 {
            if tcp.common.error.is_some() || over || !self.wait(tid, patience.timeout) {
                return Outcome::Done(Ok(done));
            }
            self.peek_again(id, peek, done);
            return Outcome::Sleep;
        }
        if tcp.done {
            return Outcome::Done(Ok(0));
        }
        if let Some(error) = tcp.common.error.take() {
            return Outcome::Done(Err(error));
        }
        if tcp.common.shut & RCV != 0 {
            return Outcome::Done(Ok(0));
        }
        if tcp.state == State::Close {
            return Outcome::Done(Err(Errno::ENOTCONN));
        }
        self.block(tid, patience.timeout, Errno::EAGAIN)
    }

    /// A peek that sleeps begins anew.
    fn peek_again(&mut self, id: u64, peek: bool, done: usize) {
        if peek {
            let tcp = &mut self.tcps[id];
            tcp.common.peek_at = tcp.common.peek_at.map(|at| at - done);
        }
    }

    /// Copies what has come, up to the urgent mark. `Ok(true)`: that is the end of this call,
    /// whatever was asked for.
    fn copy_out(
        &mut self,
        id: u64,
        to: &Places,
        flags: i32,
        at: &mut u64,
        done: &mut usize,
    ) -> Result<bool, Errno> {
        let total = to.len();
        loop {
            let tcp = &self.tcps[id];
            let marked = |tcp: &super::objects::Tcp| tcp.urgent != Urgent::None;
            if marked(tcp) && tcp.urgent_at == *at && *done > 0 {
                return Ok(true);
            }
            let there = tcp.end().saturating_sub(*at) as usize;
            if there == 0 {
                // FIN is in the queue, or was read before.
                return Ok(tcp.done && (*at == tcp.end() || *done > 0));
            }
            let mut used = there.min(total - *done);
            let mut skipped = 0;
            if marked(tcp) && tcp.urgent_at >= *at && tcp.urgent_at - *at < used as u64 {
                match (tcp.urgent_at - *at) as usize {
                    0 if !tcp.common.inline => {
                        skipped = 1;
                        used -= 1;
                    }
                    0 => {}
                    before => used = before,
                }
            }
            let start = (*at - tcp.copied) as usize + skipped;
            if flags & libc::MSG_TRUNC == 0 && used > 0 {
                let bytes: Vec<u8> = tcp.queue.range(start..start + used).copied().collect();
                to.scatter(*done, &bytes)?;
            }
            *at += (used + skipped) as u64;
            *done += used;
            if flags & libc::MSG_PEEK == 0 {
                let tcp = &mut self.tcps[id];
                tcp.queue.drain(..used + skipped);
                tcp.copied = *at;
                if tcp.urgent != Urgent::None && tcp.copied > tcp.urgent_at {
                    tcp.urgent = Urgent::None;
                }
            }
            if *done == total {
                return Ok(true);
            }
        }
    }

    /// `tcp_recv_urg`.
    fn receive_urgent(&mut self, id: u64, to: &Places, flags: i32, shown: &mut i32) -> Result<usize, Errno> {
        let tcp = &mut self.tcps[id];
        if tcp.common.inline || matches!(tcp.urgent, Urgent::None | Urgent::Read) {
            return Err(Errno::EINVAL);
        }
        if tcp.state == State::Close && !tcp.done {
            return Err(Errno::ENOTCONN);
        }
        if let Urgent::Valid(byte) = tcp.urgent {
            if flags & libc::MSG_PEEK == 0 {
                tcp.urgent = Urgent::Read;
            }
            *shown |= libc::MSG_OOB;
            if to.len() == 0 {
                *shown |= libc::MSG_TRUNC;
                return Ok(0);
            }
            if flags & libc::MSG_TRUNC == 0 {
                to.scatter(0, &[byte])?;
            }
            return Ok(1);
        }
        if tcp.state == State::Close || tcp.common.shut & RCV != 0 {
            return Ok(0);
        }
        Err(Errno::EAGAIN)
    }

    /// Shuts halves (`inet_shutdown`); `how` as in [`RCV`] and [`SEND`].
    pub(super) fn tcp_shutdown(&mut self, id: u64, how: u8) -> Result<usize, Errno> {
        let tcp = &mut self.tcps[id];
        if tcp.linked == Linked::Connecting {
            tcp.linked = match tcp.state {
                State::SynSent | State::SynRecv | State::Close => Linked::Disconnecting,
                _ => Linked::Connected,
            };
        }
        let mut result = Ok(0);
        match tcp.state {
            State::Listen if how & RCV == 0 => {}
            State::Listen | State::SynSent => {
                self.stop_listening(id);
                self.disconnect(id);
                self.tcps[id].linked = Linked::Unconnected;
            }
            state => {
                if state == State::Close {
                    result = Err(Errno::ENOTCONN);
                }
                tcp.common.shut |= how;
                if how & SEND != 0 && matches!(state, State::Established | State::CloseWait) {
                    self.send_fin(id);
                }
            }
        }
        self.arrive_elsewhere(id);
        let file = self.tcps[id].common.file;
        self.wake(file, ready::ALL);
        result
    }

    /// Cuts a connection (`tcp_disconnect`); what was in the queue of one that listens is the
    /// caller's to end.
    pub(super) fn disconnect(&mut self, id: u64) {
        self.cut(id);
        self.arrive_elsewhere(id);
        let file = self.tcps[id].common.file;
        self.wake(file, ready::ERR);
    }

    /// Those who wait to be accepted never will (`inet_csk_listen_stop`).
    fn stop_listening(&mut self, id: u64) {
        self.tcps[id].accepted.clear();
        let waiting: Vec<u64> =
            self.tcps.iter().filter(|(_, tcp)| tcp.listener == id).map(|(id, _)| id).collect();
        for child in waiting {
            // What arrives with one's end may have been the end of another that did not stand yet.
            if self.tcps.find(child).is_none() {
                continue;
            }
            self.disconnect(child);
            self.tcps.remove(child);
        }
    }

    /// The last descriptor has gone (`__tcp_close`).
    pub(super) fn tcp_close(&mut self, id: u64) {
        self.changes += 1;
        let tcp = &mut self.tcps[id];
        let unread = !tcp.queue.is_empty();
        tcp.common.file = None;
        tcp.common.shut = RCV | SEND;
        tcp.queue.clear();
        match tcp.state {
            State::Close => {}
            State::Listen => {
                tcp.state = State::Close;
                self.stop_listening(id);
            }
            _ if unread || tcp.common.linger == Some(0) => {
                tcp.state = State::Close;
                self.reset_peer(id);
            }
            _ => self.send_fin(id),
        }
        if self.tcps[id].state == State::Close {
            self.tcps.remove(id);
        }
    }

    /// FIONREAD, SIOCATMARK, TIOCOUTQ and SIOCOUTQNSD (`tcp_ioctl`).
    pub(super) fn tcp_ioctl(&mut self, id: u64, request: usize, at: usize) -> Result<usize, Errno> {
        const SIOCOUTQNSD: usize = 0x894b;
        const SIOCATMARK: usize = 0x8905;
        let tcp = &self.tcps[id];
        let quiet = matches!(tcp.state, State::SynSent | State::SynRecv);
        let answer = match request {
            SIOCATMARK => u64::from(tcp.urgent != Urgent::None && tcp.urgent_at == tcp.copied),
            _ if tcp.state == State::Listen => return Err(Errno::EINVAL),
            _ if quiet => 0,
            _ if request == libc::FIONREAD as usize => {
                let unread = tcp.unread();
                let before_mark = tcp.urgent != Urgent::None
                    && !tcp.common.inline
                    && tcp.urgent_at >= tcp.copied
                    && tcp.urgent_at < tcp.received;
                if before_mark {
                    tcp.urgent_at - tcp.copied
                } else {
                    unread.min(tcp.end().saturating_sub(tcp.copied))
                }
            }
            SIOCOUTQNSD => tcp.written - tcp.sent,
            _ => tcp.unacked.len() as u64 + u64::from(tcp.fin && !tcp.fin_acked),
        };
        user::put(at, answer as i32)?;
        Ok(0)
    }
}
