//! The script: a peer that knows the protocol as `layout` has it, and nothing of the library.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;

use fabric::queue::{self, MESSAGE};
use fabric::shm::Map;
use fabric::{Local, Remote, bell, hints, sys, trip};
use sockets::layout::{self, note};
use sockets::rendezvous;

use crate::end::End;
use crate::until;

pub struct Peer {
    /// Our end, until it is closed.
    tcp: Option<TcpStream>,
    /// The library's descriptor, of which the kernel is asked what has arrived.
    fd: i32,
    /// The socket of the link, which lives as long as this is open.
    link: i32,
    /// The script's segment, in which the library puts words and bytes; and the library's.
    pub mine: Map,
    pub theirs: Map,
    queue: queue::Producer,
    pub slot: usize,
    /// Bells of ours that the library rings: of calls, and of event queue 0. And the library's.
    bells: [i32; 2],
    their_bells: Vec<i32>,
    /// Bytes that have gone by tcp, kicks not counted; and by rings, each way.
    sent: u64,
    written: u64,
    taken: u64,
    kicks: u64,
    fired: u64,
    /// Where the script writes and reads: a ring, and its capacity.
    to: (usize, usize),
    from: (usize, usize),
}

impl Peer {
    /// Makes a link with the process that has `ours`, whose other end is `tcp`.
    pub fn meet(ours: &End, tcp: TcpStream) -> Peer {
        Peer::say(ours, tcp, |_| ()).expect("it is let in")
    }

    /// As [`Peer::meet`], with a HELLO that `change` has changed; `None` if that is not answered.
    pub fn say(ours: &End, tcp: TcpStream, change: impl FnOnce(&mut [u8; 72])) -> Option<Peer> {
        let (token, index, cookie) = ours.post();
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let link = sys::socket(libc::AF_UNIX, kind, 0).unwrap();
        let (name, len) = rendezvous::address(token);
        sys::connect(link, (&raw const name).cast(), len).unwrap();
        let (mine, memfd) = Map::create(c"script", layout::SEGMENT).unwrap();
        let bells = [bell::create().unwrap(), bell::create().unwrap()];
        let mut hello = [0; 72];
        let said: [&[u8]; 8] = [
            &0x5348_4c4b_u32.to_ne_bytes(),
            &layout::VERSION.to_ne_bytes(),
            &cookie_of(&tcp).to_ne_bytes(), // a token: any will do that no other link has
            &(layout::SEGMENT as u64).to_ne_bytes(),
            &index.to_ne_bytes(),
            &[0; 4],
            &cookie.to_ne_bytes(),
            &cookie_of(&tcp).to_ne_bytes(),
        ];
        hello[..48].copy_from_slice(&said.concat());
        change(&mut hello);
        sys::send_with(link, &hello, &[memfd, bells[0], bells[1]]).unwrap();
        sys::close(memfd);
        ours.tick();
        let Some(mut fds) = receive_with(link) else {
            [link, bells[0], bells[1]].into_iter().for_each(sys::close);
            // SAFETY: nobody else has seen it.
            unsafe { mine.unmap() };
            return None;
        };
        let memfd = fds.remove(0);
        let theirs = Map::open(memfd, layout::SEGMENT).unwrap();
        sys::close(memfd);
        let (queue, fd) = (queue::Producer::default(), ours.fd);
        let (sent, written, taken, kicks, fired) = (0, 0, 0, 0, 0);
        let (to, from) = ((0, 0), (0, 0));
        let mut peer = Peer {
            tcp: Some(tcp),
            fd,
            link,
            mine,
            theirs,
            queue,
            slot: 0,
            bells,
            their_bells: fds,
            sent,
            written,
            taken,
            kicks,
            fired,
            to,
            from,
        };
        peer.anew();
        Some(peer)
    }

    fn tcp(&self) -> &TcpStream {
        self.tcp.as_ref().expect("it is open")
    }

    /// Begins at position 0 of its slot, with nothing sent.
    pub fn anew(&mut self) {
        self.tcp().set_nonblocking(true).unwrap();
        self.tcp().set_nodelay(true).unwrap();
        (self.sent, self.written, self.taken, self.kicks, self.fired) = (0, 0, 0, 0, 0);
        self.to = (layout::small(self.slot), layout::SMALL);
        self.from = self.to;
    }

    /// Goes on with another connection, on the same link.
    pub fn turn_to(&mut self, ours: &End, tcp: TcpStream) {
        (self.tcp, self.fd) = (Some(tcp), ours.fd);
        self.anew();
    }

    // ---- the offer ----

    pub fn offer(&mut self, ours: &End) {
        self.offer_with(ours, |_| ());
    }

    pub fn offer_with(&mut self, ours: &End, change: impl FnOnce(&mut [u8; MESSAGE])) {
        let (_, index, cookie) = ours.post();
        for word in (0..layout::SLOT_BYTES).step_by(8) {
            self.mine.set_word(self.at(word), 0);
        }
        let mut message = [0; MESSAGE];
        message[0..4].copy_from_slice(&1u32.to_ne_bytes());
        message[4..8].copy_from_slice(&(self.slot as u32).to_ne_bytes());
        message[8..12].copy_from_slice(&index.to_ne_bytes());
        message[16..24].copy_from_slice(&cookie.to_ne_bytes());
        message[24..32].copy_from_slice(&cookie_of(self.tcp()).to_ne_bytes());
        change(&mut message);
        assert!(self.queue.push(&self.theirs, layout::CTL, &self.mine, layout::CTL_BACK, &message));
    }

    /// Lets a connection on tcp take us for its other end, as if we had proved to have it.
    pub fn is_proved_to(&self, ours: &End) {
        let cookie = cookie_of(self.tcp());
        ours.is_introduced_to(cookie, cookie);
    }

    /// Refuses an offer of this slot.
    pub fn refuse(&mut self, slot: usize) {
        self.slot = slot;
        self.put(layout::STATE, layout::REFUSED);
    }

    pub fn accepted(&self) -> bool {
        self.word(layout::STATE) & layout::ACCEPTED != 0
    }

    pub fn refused(&self) -> bool {
        self.word(layout::STATE) & layout::REFUSED != 0
    }

    // ---- words ----

    /// A word that the library has put.
    pub fn word(&self, word: usize) -> u64 {
        self.mine.word(self.at(word))
    }

    /// A word of our own part of the slot.
    pub fn set(&self, word: usize, value: u64) {
        self.mine.set_word(self.at(word), value);
    }

    /// Puts a word for the library.
    pub fn put(&self, word: usize, value: u64) {
        self.theirs.put_word(self.at(word), value);
    }

    /// A word that we, or the library itself, have put there.
    pub fn their(&self, word: usize) -> u64 {
        self.theirs.word(self.at(word))
    }

    /// Changes it, as only the writer of a direction may change [`layout::CLAIM`].
    pub fn set_their(&self, word: usize, value: u64) {
        self.theirs.set_word(self.at(word), value);
    }

    /// Where a word of our slot is, in both segments.
    pub fn at(&self, word: usize) -> usize {
        layout::slot(self.slot) + word
    }

    pub fn tell(&self, notes: u64) {
        self.theirs.or_word(self.at(layout::NOTES), notes);
    }

    pub fn was_told(&self, notes: u64) -> bool {
        self.word(layout::NOTES) & notes == notes
    }

    /// Positions in the rings: how far we have written, and read.
    pub fn positions(&self) -> (u64, u64) {
        (self.written, self.taken)
    }

    // ---- bytes ----

    /// Says that the ring is used from here on.
    pub fn announce(&self) {
        self.put(layout::SMALL_AT, self.sent + 1);
    }

    /// Goes on in the big ring with this number.
    pub fn grow(&mut self, number: u64) {
        self.put(layout::BIG_RING, number);
        self.put(layout::BIG_AT, self.written + 1);
        self.to = (layout::big(number), layout::BIG);
    }

    /// Says that tcp goes on here.
    pub fn leave(&self) {
        self.put(layout::TCP_AT, self.written + 1);
    }

    /// Puts bytes into the ring, wakes nobody.
    pub fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            // SAFETY: the source is one byte.
            unsafe { self.theirs.put(self.to.0 + self.written as usize % self.to.1, &byte, 1) };
            self.written += 1;
        }
        self.put(layout::W, self.written);
    }

    /// Takes what the library has put into the ring, and gives the room back.
    pub fn read(&mut self) -> Vec<u8> {
        let bytes = self.look();
        self.taken += bytes.len() as u64;
        self.put(layout::R, self.taken);
        bytes
    }

    /// As [`Peer::read`], and leaves it there. Goes over to the big ring where the library has.
    pub fn look(&mut self) -> Vec<u8> {
        let (end, mut bytes) = (self.word(layout::W), Vec::new());
        for position in self.taken..end {
            if self.word(layout::BIG_AT) == position + 1 {
                self.from = (layout::big(self.word(layout::BIG_RING)), layout::BIG);
            }
            let mut byte = 0;
            // SAFETY: the target is one byte.
            unsafe { self.mine.get(self.from.0 + position as usize % self.from.1, &mut byte, 1) };
            bytes.push(byte);
        }
        bytes
    }

    /// Sends by tcp, and waits until it has arrived.
    pub fn by_tcp(&mut self, bytes: &[u8]) {
        self.tcp().write_all(bytes).unwrap();
        self.sent += bytes.len() as u64;
        self.arrived();
    }

    /// All that came by tcp are these bytes.
    pub fn take_tcp(&mut self, bytes: &[u8]) {
        let mut got = Vec::new();
        until("bytes come by tcp", || {
            got.extend(self.some_by_tcp());
            got.len() >= bytes.len()
        });
        assert!(got == bytes, "{got:?}, not {bytes:?}");
        self.nothing_by_tcp();
    }

    /// What has come by tcp, if anything has.
    pub fn some_by_tcp(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 16];
        let count = self.tcp().read(&mut bytes).unwrap_or(0);
        bytes.truncate(count);
        bytes
    }

    pub fn nothing_by_tcp(&mut self) {
        let got = self.tcp().read(&mut [0]);
        assert!(matches!(&got, Err(error) if error.kind() == ErrorKind::WouldBlock), "{got:?}");
    }

    /// The end of what comes by tcp: of the connection, or by a reset.
    pub fn end_by_tcp(&mut self) -> std::io::Result<()> {
        let mut end = Ok(0);
        until("the end comes by tcp", || {
            end = self.tcp().read(&mut [0]);
            !matches!(&end, Err(error) if error.kind() == ErrorKind::WouldBlock)
        });
        end.map(|count| assert_eq!(count, 0))
    }

    fn arrived(&self) {
        let all = self.sent + self.kicks;
        until("bytes arrive", || received(self.fd) >= all);
    }

    // ---- waking ----

    /// Arms our tripwire.
    pub fn arm(&self, interest: u64, mode: u64, id: u8) {
        self.set(layout::TRIP, trip::armed(interest, mode, id));
    }

    pub fn is_armed(&self) -> bool {
        self.word(layout::TRIP) != 0
    }

    /// What the library is armed for.
    pub fn armed(&self) -> u64 {
        self.their(layout::TRIP)
    }

    /// Wakes the library as it is armed.
    pub fn fire(&mut self) {
        let how = self.claim();
        self.carry_out(how);
    }

    /// The first half of [`Peer::fire`]: what is left to be done.
    pub fn claim(&mut self) -> u64 {
        let how = self.theirs.stimulate(self.at(layout::TRIP), trip::RX | trip::TX);
        assert_ne!(how, 0, "it is armed");
        if how & trip::WORD != 0 {
            trip::wake(&self.theirs, self.at(layout::TRIP), 1);
        }
        if how & trip::MODE == trip::QUEUE { self.hint(trip::id(how)) } else { how }
    }

    /// The other half.
    pub fn carry_out(&mut self, how: u64) {
        if how & trip::MODE == trip::BELL {
            self.ring(trip::id(how));
        } else if how & trip::MODE != 0 {
            self.kick();
        }
        self.carried_out();
    }

    /// Says that one more firing has been carried out.
    pub fn carried_out(&mut self) {
        self.fired += 1;
        self.put(layout::FIRED, self.fired);
    }

    /// Hints that our slot has something, to an event queue; how that sleeps, if it does.
    pub fn hint(&self, queue: u8) -> u64 {
        self.put(layout::HINTED, stream::spin::ticks());
        hints::set(&self.theirs, layout::HINTS + usize::from(queue) * hints::BYTES, self.slot)
    }

    /// Rings one of the library's bells.
    pub fn ring(&self, number: u8) {
        let first = usize::from(number) == layout::CALL_BELL;
        bell::ring(self.their_bells[if first { 0 } else { 1 + usize::from(number) }]);
    }

    /// How often the library has rung our bell: that of calls, or that of event queue 0.
    pub fn rung(&self, number: usize) -> u64 {
        bell::silence(self.bells[usize::from(number != layout::CALL_BELL)])
    }

    /// One byte on the companion that has been counted.
    pub fn kick(&mut self) {
        self.kicks(1);
    }

    pub fn kicks(&mut self, count: u64) {
        self.count_kicks(count);
        self.send_kicks(count);
    }

    pub fn count_kicks(&mut self, count: u64) {
        self.kicks += count;
        self.put(layout::KICKS, self.kicks);
    }

    pub fn send_kicks(&mut self, count: u64) {
        self.tcp().write_all(&vec![0; count as usize]).unwrap();
        self.arrived();
    }

    // ---- the end ----

    pub fn tcp_fd(&self) -> i32 {
        self.tcp().as_raw_fd()
    }

    /// Tells the library the descriptor of our end, of which it may take a copy.
    pub fn lend_descriptor(&self) {
        self.put(layout::FD, self.tcp().as_raw_fd() as u64 + 1);
    }

    /// Shuts the writing half, having told so.
    pub fn shut(&self) {
        self.tell(note::SHUT_WR);
        self.tcp().shutdown(Shutdown::Write).unwrap();
        self.ended(libc::POLLRDHUP);
    }

    /// Closes, having told so.
    pub fn close(&mut self) {
        self.tell(note::CLOSED);
        self.die();
    }

    /// Ends as the kernel ends it for one that was killed.
    pub fn die(&mut self) {
        self.tcp = None;
        self.ended(libc::POLLRDHUP);
    }

    /// Resets the connection.
    pub fn reset(&mut self) {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        sys::setsockopt(self.tcp().as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, linger).unwrap();
        self.tcp = None;
        self.ended(libc::POLLHUP);
    }

    /// The kernel has told the library.
    fn ended(&self, event: i16) {
        until("the end arrives", || sys::waits_for(self.fd, event, 0));
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        [self.link, self.bells[0], self.bells[1]].into_iter().for_each(sys::close);
        self.their_bells.iter().copied().for_each(sys::close);
        // SAFETY: nobody else has copies of these mappings.
        unsafe { self.mine.unmap() };
        // SAFETY: as above.
        unsafe { self.theirs.unmap() };
    }
}

fn cookie_of(tcp: &TcpStream) -> u64 {
    sys::getsockopt(tcp.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE).unwrap()
}

/// How many bytes have arrived at a socket, ever: tcpi_bytes_received.
fn received(fd: i32) -> u64 {
    let info: [u64; 17] = sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO).unwrap();
    info[16]
}

/// The descriptors that came with the answer, if one has come.
fn receive_with(socket: i32) -> Option<Vec<i32>> {
    let (mut bytes, mut fds) = ([0u8; 72], [-1; sys::PASSED]);
    let got = sys::receive_with(socket, &mut bytes, &mut fds);
    (got == Ok((bytes.len(), false))).then(|| fds.into_iter().filter(|&fd| fd >= 0).collect())
}
