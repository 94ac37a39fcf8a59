//! Links with processes on other hosts: who may ask for one, and the events that they report.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ofi::mutex::lock;
use ofi::world::Instant;
use ofi::{Gate, Link, Owner};
use sockets::peering::progress;
use sockets::peering::wire::call;

use crate::outboxes;

/// The agent gives it to both ends of an introduction.
pub type Ticket = [u8; 16];

/// How long a ticket is good.
const GOOD: Duration = Duration::from_secs(60);
/// The most tickets that are kept.
const TICKETS: usize = 4096;
/// The beginning of a request: "SHUNTCR" and the version.
const MAGIC: [u8; 8] = *b"SHUNTCR\x02";
/// Bytes of a request: that, the ticket, and the names of the process that asks and of the one that
/// is asked.
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

    /// Some providers append bytes to what they carry.
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

/// An event of a link.
#[derive(Debug)]
pub enum LinkEvent {
    /// The link is established.
    Ready,
    /// A tripwire of ours has fired before `Ready` was handled.
    Fired(usize, u64),
    /// The peer asks for a kick on a slot.
    WantsKick(u64),
    /// The peer's progress thread has sent a call.
    Called(u64, u64),
    /// The link is over.
    Over(String),
}

/// The process at the other end of a link, and how the link was made.
#[derive(Debug)]
pub struct End {
    /// The number of the link.
    pub number: u64,
    /// The name of the peer's process.
    pub process: u64,
    pub uid: u32,
    /// Whether we have asked for it.
    pub opened: bool,
    /// Both ends know it: it marks records among the bytes of a companion.
    pub ticket: Ticket,
    /// Its number among the links of `sockets`, once it is established.
    pub index: OnceLock<u32>,
    news: Arc<News>,
}

type News = Mutex<VecDeque<(Arc<End>, LinkEvent)>>;

/// An [`End`] as its link sees it. Requests that threads of the program or of the peer wait for are
/// carried out at once, as the progress thread may be waiting to send by another link; carrying
/// them out waits for nothing. All other events are noted.
struct Noting(Arc<End>);

impl Noting {
    fn note(&self, event: LinkEvent) {
        lock(&self.0.news).push_back((Arc::clone(&self.0), event));
    }
}

impl Owner for Noting {
    fn number(&self) -> u64 {
        self.0.number
    }
    fn ready(&self, _link: &Link) {
        self.note(LinkEvent::Ready);
    }
    fn fired(&self, _link: &Link, offset: usize, held: u64) {
        match self.0.index.get() {
            None => self.note(LinkEvent::Fired(offset, held)),
            Some(&index) => {
                if let Some(slot) = progress::fired(index, offset, held) {
                    self.note(LinkEvent::WantsKick(slot));
                }
            }
        }
    }
    fn called(&self, link: &Link, what: u64, value: u64) {
        if !self.0.index.get().is_some_and(|&index| at_once(link, index, what, value)) {
            self.note(LinkEvent::Called(what, value));
        }
    }
    fn waits(&self, link: &Link) {
        outboxes::serve_others(link);
    }
    fn over(&self, _link: &Link, why: &str) {
        self.note(LinkEvent::Over(why.into()));
    }
    /// Bounded, as the progress thread has other links to serve; and longer than a lost packet
    /// delays an RDMA connection.
    fn patience(&self) -> Option<Duration> {
        Some(Duration::from_secs(4))
    }
    fn failed(&self, error: &ofi::Error) {
        self.note(LinkEvent::Over(error.to_string()));
    }
}

/// Answers a request of a peer's progress thread that takes nothing but an answer, in the order of
/// requests.
pub fn at_once(link: &Link, index: u32, what: u64, value: u64) -> bool {
    match what {
        call::ECHO => link.call(call::ECHOED, value),
        call::ECHOED => {
            if let Some(wire) = progress::wire(index) {
                wire.echoed(value);
            }
        }
        call::KICKED => progress::kicked(index, value),
        _ => return false,
    }
    true
}

/// The tickets with which links may be asked for, and the events of the links that were made.
#[derive(Clone, Default)]
pub struct Admission {
    tickets: Arc<Mutex<HashMap<Ticket, Invited>>>,
    news: Arc<News>,
}

struct Invited {
    process: u64,
    uid: u32,
    since: Instant,
}

impl Admission {
    pub fn new() -> Admission {
        Admission::default()
    }

    /// A request with this ticket comes from that process.
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

    /// Admits those that show a ticket.
    pub fn gate(&self) -> Gate {
        let admission = self.clone();
        Box::new(move |words| {
            let request = Request::parse(words).filter(|request| request.to == progress::token())?;
            let invited = lock(&admission.tickets).remove(&request.ticket)?;
            if invited.process != request.from || invited.since.elapsed() > GOOD {
                return None;
            }
            let (_, owner) = admission.end(invited.process, invited.uid, false, request.ticket);
            Some((progress::SEGMENT, owner))
        })
    }

    /// Whether a link has reported an event.
    pub fn has_news(&self) -> bool {
        !lock(&self.news).is_empty()
    }

    /// The next event of a link.
    pub fn next(&self) -> Option<(Arc<End>, LinkEvent)> {
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
