//! Links with processes on other hosts: who may ask for one, and what links tell.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use ofi::mutex::lock;
use ofi::{Gate, Link, Owner};
use sockets::peering::remote;
use sockets::peering::wire::call;

use crate::outboxes;

/// What an agent gives to both ends of an introduction.
pub type Ticket = [u8; 16];

/// How long a ticket is good.
const GOOD: Duration = Duration::from_secs(60);
/// The most tickets that are kept.
const TICKETS: usize = 4096;
/// What begins a request: "SHUNTCR" and the version.
const MAGIC: [u8; 8] = *b"SHUNTCR\x01";
/// Bytes of a request: that, the ticket, the names of who asks and of who is asked.
const REQUEST: usize = 8 + 16 + 8 + 8;

/// A request for a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    pub ticket: Ticket,
    pub from: u64,
    pub to: u64,
}

impl Request {
    pub fn bytes(&self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.ticket);
        bytes[24..32].copy_from_slice(&self.from.to_le_bytes());
        bytes[32..].copy_from_slice(&self.to.to_le_bytes());
        bytes
    }

    /// Some providers fill up what they carry.
    pub fn parse(bytes: &[u8]) -> Option<Request> {
        let bytes = bytes.first_chunk::<REQUEST>()?.strip_prefix(&MAGIC)?;
        let (ticket, names) = bytes.split_first_chunk::<16>()?;
        let (from, to) = names.split_first_chunk::<8>()?;
        Some(Request {
            ticket: *ticket,
            from: u64::from_le_bytes(*from),
            to: u64::from_le_bytes(*to.first_chunk()?),
        })
    }
}

/// What a link has told.
#[derive(Debug)]
pub enum Told {
    /// It stands.
    Ready,
    /// A tripwire of ours was fired before that was heard.
    Fired(usize, u64),
    /// The peer is to kick us on a slot.
    WantsKick(u64),
    /// The peer's carrier calls.
    Called(u64, u64),
    /// It is over.
    Over(String),
}

/// Who is at the other end of a link, and how it was made.
#[derive(Debug)]
pub struct End {
    /// Names the link.
    pub number: u64,
    /// Names the peer's process.
    pub process: u64,
    pub uid: u32,
    /// We have asked for it.
    pub opened: bool,
    /// Both ends know it: marks what stands between others' bytes.
    pub ticket: Ticket,
    /// Its number among those of `sockets`, when it stands.
    pub index: OnceLock<u32>,
    news: Arc<News>,
}

type News = Mutex<VecDeque<(Arc<End>, Told)>>;

/// [`End`], as its link has it. What the program's threads, or the peer's, wait for is done at once, as the carrier may be waiting to send by another link; it waits for
/// nothing. All else is noted.
struct Noting(Arc<End>);

impl Noting {
    fn note(&self, told: Told) {
        lock(&self.0.news).push_back((Arc::clone(&self.0), told));
    }
}

impl Owner for Noting {
    fn number(&self) -> u64 {
        self.0.number
    }
    fn ready(&self, _link: &Link) {
        self.note(Told::Ready);
    }
    fn fired(&self, _link: &Link, offset: usize, held: u64) {
        match self.0.index.get() {
            None => self.note(Told::Fired(offset, held)),
            Some(&index) => {
                if let Some(slot) = remote::fired(index, offset, held) {
                    self.note(Told::WantsKick(slot));
                }
            }
        }
    }
    fn called(&self, link: &Link, what: u64, value: u64) {
        if !self.0.index.get().is_some_and(|&index| at_once(link, index, what, value)) {
            self.note(Told::Called(what, value));
        }
    }
    fn waits(&self, link: &Link) {
        outboxes::serve_others(link);
    }
    fn over(&self, _link: &Link, why: &str) {
        self.note(Told::Over(why.into()));
    }
    /// The carrier has other links to serve. Longer than what a lost packet costs an RDMA connection.
    fn patience(&self) -> Option<Duration> {
        Some(Duration::from_secs(4))
    }
    fn failed(&self, error: &ofi::Error) {
        self.note(Told::Over(error.to_string()));
    }
}

/// Does what a peer's carrier asks for, if that takes nothing but to answer. In the order in which it was asked.
pub fn at_once(link: &Link, index: u32, what: u64, value: u64) -> bool {
    match what {
        call::ECHO => link.call(call::ECHOED, value),
        call::ECHOED => {
            if let Some(wire) = remote::wire(index) {
                wire.echoed(value);
            }
        }
        call::KICKED => remote::kicked(index, value),
        _ => return false,
    }
    true
}

/// Who may ask for a link, and what those have told that were made.
#[derive(Clone, Default)]
pub struct Gatekeeper {
    tickets: Arc<Mutex<HashMap<Ticket, Invited>>>,
    news: Arc<News>,
}

struct Invited {
    process: u64,
    uid: u32,
    since: Instant,
}

impl Gatekeeper {
    pub fn new() -> Gatekeeper {
        Gatekeeper::default()
    }

    /// Whoever shows this ticket is that process.
    pub fn invite(&self, ticket: Ticket, process: u64, uid: u32) {
        let mut tickets = lock(&self.tickets);
        if tickets.len() >= TICKETS {
            tickets.retain(|_, invited| invited.since.elapsed() < GOOD);
        }
        if tickets.len() < TICKETS {
            tickets.insert(ticket, Invited { process, uid, since: Instant::now() });
        }
    }

    /// A new end of a link.
    pub fn end(&self, process: u64, uid: u32, opened: bool, ticket: Ticket) -> (Arc<End>, Arc<dyn Owner>) {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let news = Arc::clone(&self.news);
        let end = Arc::new(End { number, process, uid, opened, ticket, index: OnceLock::new(), news });
        let owner = Arc::new(Noting(Arc::clone(&end)));
        (end, owner)
    }

    /// Lets in who shows a ticket.
    pub fn gate(&self) -> Gate {
        let keeper = self.clone();
        Box::new(move |words| {
            let request = Request::parse(words).filter(|request| request.to == remote::token())?;
            let invited = lock(&keeper.tickets).remove(&request.ticket)?;
            if invited.process != request.from || invited.since.elapsed() > GOOD {
                return None;
            }
            let (_, owner) = keeper.end(invited.process, invited.uid, false, request.ticket);
            Some((remote::SEGMENT, owner))
        })
    }

    /// Whether a link has told something.
    pub fn has_news(&self) -> bool {
        !lock(&self.news).is_empty()
    }

    /// The next thing that a link has told.
    pub fn next(&self) -> Option<(Arc<End>, Told)> {
        lock(&self.news).pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_understood_and_nothing_else_is() {
        let request = Request { ticket: [7; 16], from: 1, to: u64::MAX };
        let mut bytes = request.bytes().to_vec();
        bytes.resize(56, 0);
        assert_eq!(Request::parse(&bytes), Some(request));
        assert_eq!(Request::parse(&bytes[..REQUEST - 1]), None);
        bytes[7] ^= 1;
        assert_eq!(Request::parse(&bytes), None);
    }
}
