//! One end of a connection, as a simulated program uses it: with calls drawn from the seed. Each
//! call goes to the library's hook (or plainly to the simulated kernel) and what it gives to the
//! judge.

use std::ffi::c_int;

use crate::image::Calls;
use crate::judge::{End, For, URGENT, Watch, bytes};
use crate::program::{dice, errno, fail, note, waits};
use crate::waiting::{Wait, Waiting};
use crate::world::{self, with};

/// A call gave an end or an error that means that nothing comes or goes any more.
#[derive(Debug)]
pub struct Gone;

/// One end of a connection in a program.
pub struct Socket {
    pub calls: Calls,
    pub fd: c_int,
    /// The directions that it writes and reads.
    pub out: usize,
    pub into: usize,
    /// The only calls are ones that do not block (O_NONBLOCK).
    pub nonblocking: bool,
    /// A handler of signals uses it: no more of them come, and it waits for nothing.
    pub within_handler: bool,
    /// Whether urgent bytes come and go; and, if so, whether they stay among the others
    /// (SO_OOBINLINE).
    urgent: Option<bool>,
    /// The last read gave an urgent byte that does not count, and nothing else.
    only_urgent: bool,
    /// Whether it asks to be told only of several bytes at once, now and then.
    pub aims: bool,
    /// It writes and reads as much as it is to in one call, if that is taken and there.
    pub whole: bool,
    pub waiting: Waiting,
}

impl Socket {
    pub fn new(calls: Calls, fd: c_int, out: usize, into: usize) -> Socket {
        Socket {
            calls,
            fd,
            out,
            into,
            nonblocking: false,
            within_handler: false,
            urgent: None,
            only_urgent: false,
            aims: false,
            whole: false,
            waiting: Waiting::default(),
        }
    }

    /// The same end for another thread of the process.
    pub fn shared(&self) -> Socket {
        Socket { waiting: Waiting::default(), ..*self }
    }

    /// Makes a call of the library's, within which signals may come; errno, and whether it was
    /// right to end with EINTR.
    fn call<R>(&self, may_block: bool, work: impl FnOnce() -> R) -> (R, i32, bool) {
        if self.within_handler {
            return (work(), errno(), false);
        }
        let (result, handled) = world::hearing(work);
        let why = errno();
        let restarts =
            with(|world| world.handlers.iter().any(|handler| handler.restarts && handler.pid == world.pid()));
        (result, why, may_block && handled > 0 && !restarts)
    }

    fn waits(&self, what: Option<For>) {
        if !self.within_handler {
            waits(what);
        }
    }

    /// Makes it non-blocking.
    pub fn unblock(&mut self) {
        // SAFETY: the call takes numbers.
        unsafe {
            let flags = (self.calls.fcntl)(self.fd, libc::F_GETFL, 0);
            (self.calls.fcntl)(self.fd, libc::F_SETFL, (flags | libc::O_NONBLOCK) as usize);
        }
        self.nonblocking = true;
    }

    /// Writes so many bytes, in pieces.
    pub fn write(&mut self, mut left: u64) -> Result<(), Gone> {
        while left > 0 {
            let piece = match dice(4) {
                _ if self.whole => left,
                0 => 1 + dice(left.min(16)),
                1 => 1 + dice(left.min(1000)),
                _ => left,
            };
            left -= self.write_once(piece.min(left))?;
        }
        Ok(())
    }

    /// One call, or a wait for room; how many bytes it took.
    fn write_once(&mut self, len: u64) -> Result<u64, Gone> {
        let sent = self.write_now(len)?;
        if sent == 0 || self.waiting.full && dice(2) == 0 {
            self.wait(Wait::Out);
        }
        Ok(sent)
    }

    /// Urgent bytes come and go from now on.
    pub fn urge(&mut self, inline: bool) {
        self.urgent = Some(inline);
        if inline {
            let on = 1i32;
            // SAFETY: four bytes are there.
            unsafe {
                (self.calls.setsockopt)(
                    self.fd,
                    libc::SOL_SOCKET,
                    libc::SO_OOBINLINE,
                    (&raw const on).cast(),
                    4,
                )
            };
            with(|world| world.judge.directions[self.into].inline = true);
            note(|| format!("SO_OOBINLINE({})", self.fd));
        }
    }

    pub fn is_urgent(&self) -> bool {
        self.urgent.is_some()
    }

    /// Sends a byte that is urgent, beside the others.
    fn send_urgent(&mut self) {
        let at = with(|world| {
            let it = &mut world.judge.directions[self.out];
            it.urgent.push(it.written);
            it.written
        });
        let flags = libc::MSG_OOB | libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        let send = || {
            // SAFETY: one byte is there.
            unsafe { (self.calls.send)(self.fd, &raw const URGENT, 1, flags) }
        };
        let (sent, why, _) = self.call(false, send);
        note(|| format!("send urgent({}) = {sent}{}", self.fd, said(sent, why)));
        if sent != 1 {
            with(|world| {
                let places = &mut world.judge.directions[self.out].urgent;
                let last = places.iter().rposition(|&place| place == at);
                last.map(|last| places.remove(last));
            });
            let reset = self.is_reset(why);
            if why != libc::EAGAIN && !(reset && with(|world| world.judge.may_be_reset(self.out))) {
                fail(|| format!("direction {}: an urgent byte is not sent: {why}", self.out));
            }
        }
    }

    /// Takes the urgent byte, if there is one.
    fn read_urgent(&mut self, inline: bool) {
        let (mut byte, flags) = (0u8, libc::MSG_OOB | libc::MSG_DONTWAIT);
        let recv = || {
            // SAFETY: one byte has room.
            unsafe { (self.calls.recv)(self.fd, &raw mut byte, 1, flags) }
        };
        let (got, why, _) = self.call(false, recv);
        note(|| format!("recv urgent({}) = {got}, {byte:#x}{}", self.fd, said(got, why)));
        let fits = match got {
            1 => !inline && byte == URGENT,
            0 => !inline,
            _ => matches!(why, libc::EINVAL | libc::EAGAIN | libc::ENOTCONN),
        };
        if !fits {
            fail(|| format!("direction {}: of urgent data {got} bytes, {byte:#x}, error {why}", self.into));
        }
    }

    /// So many bytes are still to come: now and then asks to be told only when there are several
    /// (SO_RCVLOWAT).
    pub fn aim(&mut self, left: u64) {
        self.lower(left);
        if self.aims && left > 1 && dice(6) == 0 {
            self.set_low_water(1 + dice(left.min(50)));
        }
    }

    /// No more is asked for than is still to come.
    pub fn lower(&mut self, left: u64) {
        if with(|world| world.judge.directions[self.into].low_water) > left.max(1) {
            self.set_low_water(1);
        }
    }

    fn set_low_water(&mut self, mark: u64) {
        let value = mark as i32;
        let at = (&raw const value).cast();
        // SAFETY: four bytes are there.
        let result = unsafe { (self.calls.setsockopt)(self.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, at, 4) };
        note(|| format!("SO_RCVLOWAT({}, {value}) = {result}", self.fd));
        with(|world| world.judge.directions[self.into].low_water = mark);
    }

    /// One call; how many bytes it took: none, if it would block and does not.
    pub fn write_now(&mut self, len: u64) -> Result<u64, Gone> {
        let urgent = self.urgent.filter(|_| dice(8) == 0);
        if urgent == Some(false) {
            self.send_urgent();
        }
        let inline = with(|world| world.judge.directions[self.out].inline);
        let more = if urgent == Some(true) && inline { libc::MSG_OOB } else { 0 };
        let from = with(|world| {
            let it = &mut world.judge.directions[self.out];
            it.begun = it.written + len;
            it.written
        });
        let bytes = bytes(self.out, from, len as usize);
        let (at, fd, half) = (bytes.as_ptr(), self.fd, bytes.len() / 2);
        let iov = [
            libc::iovec { iov_base: at.cast_mut().cast(), iov_len: half },
            libc::iovec { iov_base: at.wrapping_add(half).cast_mut().cast(), iov_len: bytes.len() - half },
        ];
        let way = dice(6);
        let quiet = libc::MSG_NOSIGNAL;
        // SAFETY: the buffers live through the calls, and the lengths are theirs.
        let (sent, why, may_intr) = self.call(way != 3 && !self.nonblocking, || unsafe {
            match way {
                0 => (self.calls.write)(fd, at, bytes.len()),
                1 => (self.calls.writev)(fd, iov.as_ptr(), 2),
                2 => {
                    let mut message: libc::msghdr = std::mem::zeroed();
                    (message.msg_iov, message.msg_iovlen) = (iov.as_ptr().cast_mut(), 2);
                    (self.calls.sendmsg)(fd, &raw const message, quiet)
                }
                3 => (self.calls.send)(fd, at, bytes.len(), quiet | libc::MSG_DONTWAIT),
                _ => (self.calls.send)(fd, at, bytes.len(), quiet | more),
            }
        });
        note(|| {
            format!(
                "{}({fd}, {len}) = {sent}{}",
                ["write", "writev", "sendmsg", "send now", "send", "send"][way as usize],
                said(sent, why)
            )
        });
        // A write that takes less than it was given says that there is no room for more, unless it
        // was cut short for no reason.
        let cut = with(|world| world.kernel.limits.partial) || way != 3 && !self.nonblocking;
        let short = sent > 0 && (sent as u64) < len && !cut;
        self.waiting.full = short || sent < 0 && why == libc::EAGAIN;
        if sent > 0 {
            with(|world| {
                let it = &mut world.judge.directions[self.out];
                it.written += sent as u64;
                it.begun = it.written;
            });
            return Ok(sent as u64);
        }
        with(|world| {
            let it = &mut world.judge.directions[self.out];
            it.begun = it.written;
        });
        match why {
            libc::EAGAIN if way == 3 || self.nonblocking => Ok(0),
            libc::EINTR if may_intr => Ok(0),
            _ if self.is_reset(why) => {
                if !with(|world| world.judge.may_be_reset(self.out)) {
                    fail(|| {
                        format!("direction {}: a write fails ({why}), and the peer has not closed", self.out)
                    });
                }
                Err(Gone)
            }
            _ => {
                fail(|| format!("direction {}: a write of {len} gives {sent}, error {why}", self.out));
                Err(Gone)
            }
        }
    }

    /// Whether a call that does not read says that the connection was reset, which is noted: a read
    /// may say so no more.
    fn is_reset(&self, why: i32) -> bool {
        let reset = matches!(why, libc::EPIPE | libc::ECONNRESET);
        with(|world| world.judge.directions[self.into].reset_told |= reset);
        reset
    }

    /// Reads so many bytes, or to the end.
    pub fn read(&mut self, mut left: u64) -> Result<(), Gone> {
        while left > 0 {
            self.aim(left);
            left -= self.read_once(left)?;
        }
        Ok(())
    }

    /// Reads to the end.
    pub fn drain(&mut self) {
        self.aim(0);
        while self.read_once(1 << 16).is_ok() {}
    }

    /// One call or two; how many bytes came.
    pub fn read_once(&mut self, most: u64) -> Result<u64, Gone> {
        let most = if !self.whole && dice(3) == 0 { 1 + dice(most) } else { most } as usize;
        let mut way = dice(8);
        if self.nonblocking || matches!(way, 4..7) {
            if dice(3) > 0 {
                waits(Some(For::One(Watch::Bytes(self.into))));
                self.wait(Wait::In);
                waits(None);
            } else if !self.nonblocking {
                way = 0;
            }
        }
        self.read_now(way, most)
    }

    /// One call, which does not block; how many bytes came.
    pub fn try_read(&mut self, most: u64) -> Result<u64, Gone> {
        let most = if dice(3) == 0 { 1 + dice(most) } else { most } as usize;
        loop {
            let got = self.read_now(dice(8), most)?;
            // There may be more, although nothing that counts has come.
            if got > 0 || !self.only_urgent {
                return Ok(got);
            }
        }
    }

    fn read_now(&mut self, way: u64, most: usize) -> Result<u64, Gone> {
        if let Some(inline) = self.urgent.filter(|_| dice(8) == 0) {
            self.read_urgent(inline);
        }
        let mut buffer = vec![0u8; most];
        if way == 7 {
            self.peek(&mut buffer);
        }
        self.waits(Some(For::One(Watch::Bytes(self.into))));
        let (at, fd, half) = (buffer.as_mut_ptr(), self.fd, most / 2);
        let iov = [
            libc::iovec { iov_base: at.cast(), iov_len: half },
            libc::iovec { iov_base: at.wrapping_add(half).cast(), iov_len: most - half },
        ];
        // SAFETY: the buffers live through the calls, and the lengths are theirs.
        let (got, why, may_intr) = self.call(way != 4 && !self.nonblocking, || unsafe {
            match way {
                0 => (self.calls.read)(fd, at, most),
                1 => (self.calls.readv)(fd, iov.as_ptr(), 2),
                2 => {
                    let mut message: libc::msghdr = std::mem::zeroed();
                    (message.msg_iov, message.msg_iovlen) = (iov.as_ptr().cast_mut(), 2);
                    (self.calls.recvmsg)(fd, &raw mut message, 0)
                }
                4 => (self.calls.recv)(fd, at, most, libc::MSG_DONTWAIT),
                _ => (self.calls.recv)(fd, at, most, 0),
            }
        });
        self.waits(None);
        note(|| {
            format!(
                "{}({fd}, {most}) = {got}{}",
                ["read", "readv", "recvmsg", "recv", "recv now", "recv", "recv", "recv"][way as usize],
                said(got, why)
            )
        });
        // A read that gives less than was asked for says that there is no more; but not where it
        // may have come to an urgent byte.
        let short = got > 0 && got < most as isize && !self.waiting.knows_of_end();
        self.waiting.drained = short && self.urgent.is_none() || got < 0 && why == libc::EAGAIN;
        self.only_urgent = false;
        if got < 0 && why == libc::EINTR && may_intr {
            return Ok(0);
        }
        let counted = self.judge_read(got, why, &buffer, way == 4 || self.nonblocking)?;
        self.only_urgent = got > 0 && counted == 0;
        Ok(counted)
    }

    fn judge_read(&mut self, got: isize, why: i32, buffer: &[u8], may_be_empty: bool) -> Result<u64, Gone> {
        let into = self.into;
        match got {
            1.. => Ok(with(|world| world.judge.got(into, &buffer[..got as usize], true))),
            0 => {
                with(|world| world.judge.end(into, End::Eof));
                Err(Gone)
            }
            _ if why == libc::EAGAIN && may_be_empty => Ok(0),
            // One that was reset for want of a relay is not connected any more when the error has
            // been told; one that is reset behind an end says EPIPE (tcp_reset()).
            _ if matches!(why, libc::ECONNRESET | libc::ENOTCONN | libc::EPIPE) => {
                with(|world| world.judge.end(into, End::Reset));
                Err(Gone)
            }
            _ => {
                fail(|| format!("direction {into}: a read fails: {why}"));
                Err(Gone)
            }
        }
    }

    /// Waits until it may read or write.
    fn wait(&mut self, wait: Wait) {
        self.waiting.wait(&self.calls, self.fd, wait);
    }

    /// A look at what has come.
    fn peek(&mut self, buffer: &mut [u8]) {
        // SAFETY: the buffer is as long as that.
        let (got, why, _) = self.call(false, || unsafe {
            (self.calls.recv)(self.fd, buffer.as_mut_ptr(), buffer.len(), libc::MSG_PEEK | libc::MSG_DONTWAIT)
        });
        note(|| format!("peek({}) = {got}{}", self.fd, said(got, why)));
        if got > 0 {
            with(|world| world.judge.got(self.into, &buffer[..got as usize], false));
        } else if got < 0 && why == libc::ECONNRESET {
            // It is told once; a read finds an end then.
            with(|world| world.judge.end(self.into, End::Reset));
        }
    }

    /// Nothing more is written.
    pub fn shut(&mut self) {
        with(|world| world.judge.directions[self.out].ended = true);
        // SAFETY: the call takes numbers.
        let (result, why, _) = self.call(false, || unsafe { (self.calls.shutdown)(self.fd, libc::SHUT_WR) });
        note(|| format!("shutdown({}) = {result}{}", self.fd, said(result as isize, why)));
        if result != 0 && !with(|world| world.judge.may_be_reset(self.out)) {
            fail(|| format!("shutdown fails: {why}"));
        }
    }

    /// Leaves it to the kernel, which closes it when the process ends.
    pub fn stay_open(mut self) {
        self.waiting.end(&self.calls);
        note(|| format!("{} stays open", self.fd));
    }

    /// The end of it.
    pub fn close(mut self) {
        with(|world| {
            world.judge.directions[self.out].ended = true;
            // Nothing is lost when all has been read.
            let into = &mut world.judge.directions[self.into];
            into.left |= into.seen != Some(End::Eof);
        });
        self.waiting.end(&self.calls);
        // SAFETY: the call takes a number.
        let (result, ..) = self.call(false, || unsafe { (self.calls.close)(self.fd) });
        note(|| format!("close({}) = {result}", self.fd));
    }
}

fn said(result: isize, errno: i32) -> String {
    if result < 0 { format!(", error {errno}") } else { String::new() }
}
