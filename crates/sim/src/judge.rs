//! What plain TCP would have shown the programs: bytes in order and once, ends, errors, and nobody
//! who sleeps beside what is his.

use std::iter;
use std::sync::LazyLock;

use sim::kernel::{Pid, Tid};

/// So long may somebody sleep who is owed something. Shunt has pauses on purpose (a recall waits
/// for its peer; close() waits 200 ms at most for a kick that found no room), all below, and looks
/// again after 400 ms whether it has missed something.
const OWED_NS: u64 = 300_000_000;

/// One direction of a connection: what its writer has written and its reader has read.
#[derive(Debug, Default, Clone)]
pub struct Direction {
    pub writer: Pid,
    pub reader: Pid,
    /// So many bytes were written: told by calls that have returned, and by a call that is under
    /// way at most.
    pub written: u64,
    pub begun: u64,
    pub read: u64,
    /// The writer has ended it: shut it down or closed.
    pub ended: bool,
    /// The reader has closed: what is unread is lost, and the writer may see an error.
    pub left: bool,
    /// The end that the reader has seen.
    pub seen: Option<End>,
    /// Another call has told the reader of a reset, which is told once: a read finds an end.
    pub reset_told: bool,
    /// The reader has passed its descriptor on: who has it then knows nothing of rings, and what
    /// was recalled is lost if the writer is killed before it has sent that.
    pub passed: bool,
    /// SO_RCVLOWAT of the reader, if more than 1.
    pub low_water: u64,
    /// Places before which an urgent byte was sent that does not count.
    pub urgent: Vec<u64>,
    /// Its reader has urgent bytes among the others (SO_OOBINLINE). Of those that come before it
    /// says so, the kernel drops one when the next one comes.
    pub inline: bool,
}

/// Urgent bytes that do not count, and no others, are this.
pub static URGENT: u8 = 0xee;

/// How a direction ended for its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Eof,
    Reset,
}

/// What somebody may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// Bytes or the end of a direction.
    Bytes(usize),
    /// Room in a direction.
    Room(usize),
    /// A connection to take.
    Caller,
}

/// What a thread sleeps for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    One(Watch),
    /// Whatever the server's set has in [`Judge::watched`].
    Set,
}

/// A thread that sleeps.
#[derive(Debug, Clone, Copy)]
struct Wait {
    tid: Tid,
    what: For,
    owed: u64,
}

#[derive(Debug, Default)]
pub struct Judge {
    pub directions: Vec<Direction>,
    waits: Vec<Wait>,
    /// What the members of the server's set are there for now.
    pub watched: Vec<Watch>,
    /// Connections that stand and have not been accepted.
    pub callers: i64,
    killed: Vec<Pid>,
    /// Processes that needed a relay, which the simulator has not, or memory, which was not there:
    /// their connection may be reset.
    pub no_relay: Vec<Pid>,
    /// A link between hosts has died: one who is killed may leave a record unread, which makes a
    /// reset.
    pub cut: bool,
    /// So much longer may somebody sleep who is owed something: between hosts it takes a while
    /// until both ends know that a link has died.
    pub slack: u64,
    failure: Option<String>,
    /// The longest that somebody slept who was owed something.
    pub longest: u64,
}

/// What directions carry, each from a place of its own on, again and again: a prime number of
/// bytes, so that no ring's turn is one of theirs.
static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let words = (1..).map(|word: u64| word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let bytes = words.flat_map(|word| (word ^ word >> 29).to_le_bytes());
    bytes.map(|byte| if byte == URGENT { !URGENT } else { byte }).take(65_521).collect()
});

/// So many bytes of a direction from a place on, in pieces.
fn pieces(direction: usize, from: u64, len: usize) -> impl Iterator<Item = &'static [u8]> {
    let mut at = (from + direction as u64 * 12_345) as usize % BYTES.len();
    let mut left = len;
    iter::from_fn(move || {
        let piece = &BYTES[at..][..left.min(BYTES.len() - at)];
        (at, left) = (0, left - piece.len());
        (!piece.is_empty()).then_some(piece)
    })
}

/// So many bytes of a direction from a place on.
pub fn bytes(direction: usize, from: u64, len: usize) -> Vec<u8> {
    pieces(direction, from, len).collect::<Vec<_>>().concat()
}

/// Whether these are they.
fn are(direction: usize, from: u64, mut bytes: &[u8]) -> bool {
    pieces(direction, from, bytes.len()).all(|piece| {
        let (first, rest) = bytes.split_at(piece.len());
        bytes = rest;
        first == piece
    })
}

impl Judge {
    /// A new direction.
    pub fn add(&mut self, writer: Pid, reader: Pid) -> usize {
        self.directions.push(Direction { writer, reader, ..Direction::default() });
        self.directions.len() - 1
    }

    /// Something is wrong; the first that is said counts.
    pub fn fail(&mut self, why: impl FnOnce() -> String) {
        if self.failure.is_none() {
            self.failure = Some(why());
        }
    }

    pub fn failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    pub fn killed(&mut self, pid: Pid) {
        self.killed.push(pid);
    }

    /// A process makes no calls any more.
    pub fn ended(&mut self, pid: Pid) {
        for direction in &mut self.directions {
            direction.ended |= direction.writer == pid;
            direction.left |= direction.reader == pid;
        }
    }

    fn is_killed(&self, pid: Pid) -> bool {
        self.killed.contains(&pid)
    }

    /// Whether an end of the connection may find it reset, or have lost what it wrote: the other
    /// has closed with bytes unread, or may have.
    pub fn may_be_reset(&self, direction: usize) -> bool {
        let other = direction ^ 1;
        if !self.no_relay.is_empty() {
            return true;
        }
        let of = &self.directions[direction];
        if self.cut && (self.is_killed(of.writer) || self.is_killed(of.reader)) {
            return true;
        }
        self.directions[direction].left || self.directions[other].left
    }

    /// Whether bytes of a direction may have been unread when its reader closed, or came later.
    fn is_unread(&self, direction: usize) -> bool {
        let it = &self.directions[direction];
        it.begun > it.read || !it.urgent.is_empty()
    }

    /// Bytes came; how many of them count.
    pub fn got(&mut self, direction: usize, bytes: &[u8], taken: bool) -> u64 {
        let it = &mut self.directions[direction];
        let (from, begun) = (it.read, it.begun);
        let mut urgent = it.urgent.clone();
        let mut at = from;
        let mut rest = bytes;
        if urgent.is_empty() && from + bytes.len() as u64 <= begun && are(direction, from, bytes) {
            // As nearly always: all at once.
            (at, rest) = (from + bytes.len() as u64, &[]);
        }
        for &is in rest {
            // It may come with the others, where they are read past its mark.
            if is == URGENT
                && let Some(place) = urgent.iter().position(|&place| place == at)
            {
                urgent.remove(place);
                continue;
            }
            let shall = self::bytes(direction, at, 1)[0];
            if at >= begun {
                self.fail(|| format!("direction {direction}: more than the {begun} bytes that were written"));
                return 0;
            }
            if is != shall {
                self.fail(|| format!("direction {direction}: byte {at} is {is:#x} instead of {shall:#x}"));
                return 0;
            }
            at += 1;
        }
        if taken {
            (it.read, it.urgent) = (at, urgent);
        }
        if it.seen.is_some() {
            self.fail(|| format!("direction {direction}: bytes behind its end"));
        }
        at - from
    }

    /// The end came.
    pub fn end(&mut self, direction: usize, end: End) {
        let reset = self.may_be_reset(direction);
        let unread = self.is_unread(direction ^ 1);
        let it = &mut self.directions[direction];
        if it.seen == Some(End::Reset) {
            return;
        }
        it.seen = Some(end);
        let (read, written, ended, writer) = (it.read, it.written, it.ended, it.writer);
        let (reset_told, passed) = (it.reset_told, it.passed);
        let why = unread || self.is_killed(writer);
        if end == End::Reset && !(reset && why) && self.no_relay.is_empty() {
            self.fail(|| format!("direction {direction}: reset, and nobody has closed with bytes unread"));
        }
        if end == End::Eof && !ended {
            self.fail(|| format!("direction {direction}: an end that its writer has not made"));
        }
        let lost = passed && self.is_killed(writer);
        if end == End::Eof && read < written && !reset_told && !lost {
            self.fail(|| format!("direction {direction}: the end after {read} bytes of {written}"));
        }
    }

    /// A thread begins to wait; it has what it waited for.
    pub fn waits(&mut self, tid: Tid, what: Option<For>) {
        self.waits.retain(|wait| wait.tid != tid);
        self.waits.extend(what.map(|what| Wait { tid, what, owed: 0 }));
    }

    /// Whether plain TCP has this for who waits.
    pub fn has(&self, watch: Watch) -> bool {
        match watch {
            Watch::Bytes(direction) => {
                let it = &self.directions[direction];
                (it.written >= it.read + it.low_water.max(1) || it.ended) && it.seen.is_none()
            }
            Watch::Room(direction) => {
                let it = &self.directions[direction];
                it.written == it.read || it.left
            }
            Watch::Caller => self.callers > 0,
        }
    }

    /// Everybody sleeps until then: who is owed something meanwhile?
    pub fn idle(&mut self, now: u64, until: u64, asleep: &dyn Fn(Tid) -> bool) -> Result<(), String> {
        for at in 0..self.waits.len() {
            let wait = self.waits[at];
            let owed = match wait.what {
                For::One(watch) => Some(watch).filter(|&watch| self.has(watch)),
                For::Set => self.watched.iter().copied().find(|&watch| self.has(watch)),
            };
            let Some(watch) = owed.filter(|_| asleep(wait.tid)) else { continue };
            let owed = wait.owed + until - now;
            self.waits[at].owed = owed;
            self.longest = self.longest.max(owed);
            if owed > OWED_NS + self.slack {
                let what = match watch {
                    Watch::Bytes(direction) => {
                        let it = &self.directions[direction];
                        let ended = if it.ended { ", which has ended" } else { "" };
                        format!(
                            "{} bytes of direction {direction}{ended}",
                            it.written.saturating_sub(it.read)
                        )
                    }
                    Watch::Room(direction) => format!("room in direction {direction}"),
                    Watch::Caller => "a connection to take".to_owned(),
                };
                return Err(format!("thread {} sleeps for {} ms beside {what}", wait.tid, owed / 1_000_000));
            }
        }
        Ok(())
    }

    /// All have ended: was anything lost?
    pub fn verdict(&mut self) -> Result<(), String> {
        match self.failure() {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }
}
