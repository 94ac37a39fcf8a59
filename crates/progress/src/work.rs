//! The progress thread's work, done again and again by the port's thread.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cluster::client::Client;
use cluster::wire::{FromAgent, Reach, Ticket, ToAgent};
use ofi::port::Caller;
use ofi::world::Instant;
use ofi::{Link, Port, PortWork};
use sockets::peering::desk;
use sockets::peering::progress::{self, Kick};
use sockets::peering::wire::{self, Wire, call, task};
use sockets::thread;

use crate::links::{Admission, End, LinkEvent, Request, at_once};
use crate::outboxes;

/// How long until it tries again to reach the agent.
const RETRY: Duration = Duration::from_secs(2);
/// How long until a connection that was refused, or found no link, is posted again.
const AGAIN: Duration = Duration::from_secs(10);
/// How often it checks whether a link that is over can be freed.
const PATIENCE: Duration = Duration::from_millis(200);
/// How soon it tries again when a lock, or a full companion, has prevented something.
const SOON: Duration = Duration::from_millis(1);
/// How long it peeks for an END that a peer has announced. An END behind bytes that the program
/// does not read is found when the program reads them.
const HEARD: Duration = Duration::from_secs(1);
/// How long a work request may have a ticket and no entry.
const STUCK: Duration = Duration::from_secs(2);

/// An established link.
struct Standing {
    end: Arc<End>,
    link: Arc<Link>,
    wire: &'static Wire,
    index: u32,
    /// The work request that was begun and not written, and since when.
    stuck: Option<(u64, Instant)>,
    /// This end has closed it, and its connections have gone back to tcp.
    closed: bool,
    cut: bool,
    /// Since when it is over.
    over: Option<Instant>,
    /// It had no free slot. From then on connections that wait for one are introduced again, for
    /// another link.
    full: bool,
}

/// A kick that a peer has asked for.
struct Owed {
    index: u32,
    slot: u64,
    /// It has been counted, as which one, and is sent when the peer has echoed this.
    counted: Option<(u64, u64)>,
}

impl Owed {
    /// Whether nothing can be done about it until the peer has answered. Not if another thread had
    /// the connection when the answer came: there will be no other one.
    fn waits(&self) -> bool {
        self.counted
            .is_some_and(|(_, echo)| progress::wire(self.index).is_some_and(|wire| !wire.has_echoed(echo)))
    }
}

pub struct Progress {
    caller: Caller,
    admission: Admission,
    provider: String,
    serving: bool,
    agent: Option<Client>,
    enrolled: bool,
    tried: Option<Instant>,
    /// The connections that are posted; they are posted again when an agent comes back.
    posted: BTreeMap<u32, u64>,
    standing: Vec<Standing>,
    /// Links that were asked for: kept until they are established or over.
    asked: HashMap<u64, (Arc<End>, Arc<Link>)>,
    owed: Vec<Owed>,
    /// Links and slots that peers have recalled to tcp.
    recalled: Vec<(u32, u64)>,
    /// Those whose offers peers have taken.
    taken: Vec<(u32, u64)>,
    /// Connections to which peers have sent an END, and the time when peeking for it stops.
    ends: Vec<(u32, u64, Instant)>,
    /// Since when something waits to be posted again.
    again: Option<Instant>,
    /// The device is gone: no more introductions.
    gone: bool,
}

impl Progress {
    pub fn new(port: &Port, admission: Admission, provider: &str) -> Progress {
        Progress {
            caller: port.caller(),
            admission,
            provider: provider.into(),
            serving: false,
            agent: None,
            enrolled: false,
            tried: None,
            posted: BTreeMap::new(),
            standing: Vec::new(),
            asked: HashMap::new(),
            owed: Vec::new(),
            recalled: Vec::new(),
            taken: Vec::new(),
            ends: Vec::new(),
            again: None,
            gone: false,
        }
    }

    /// Work that belongs to no link.
    fn at_the_desk(&mut self) -> usize {
        let mut did = 0;
        while let Some(request) = desk::next() {
            did += 1;
            let index = request.at as u32;
            match request.what {
                task::POST => {
                    self.posted.insert(index, request.value);
                    self.post(index, request.value);
                }
                task::WITHDRAW if self.posted.get(&index) == Some(&request.value) => {
                    self.posted.remove(&index);
                    self.say(&ToAgent::Withdraw { index, cookie: request.value });
                }
                task::RELEASE => self.forget(request.at),
                _ => {}
            }
        }
        did
    }

    fn forget(&mut self, number: u64) {
        let Some(place) = self.standing.iter().position(|standing| standing.end.number == number) else {
            return;
        };
        let gone = self.standing.swap_remove(place);
        gone.link.close();
        outboxes::remove(&gone.link);
    }

    fn post(&mut self, index: u32, cookie: u64) {
        if self.enrolled
            && let Some((own, peer)) = progress::posted(index, cookie)
        {
            self.say(&ToAgent::Post { index, cookie, own, peer });
        }
    }

    fn post_all(&mut self) {
        self.again = None;
        let posted: Vec<_> = self.posted.iter().map(|(&index, &cookie)| (index, cookie)).collect();
        posted.into_iter().for_each(|(index, cookie)| self.post(index, cookie));
    }

    fn say(&mut self, message: &ToAgent) {
        if let Some(agent) = &self.agent
            && agent.send(message).is_err()
        {
            self.agent_is_gone();
        }
    }

    fn agent_is_gone(&mut self) {
        self.agent = None;
        self.enrolled = false;
        self.tried = Some(Instant::now());
    }

    /// Connects to the agent, and handles its messages.
    fn with_the_agent(&mut self) -> usize {
        if !self.gone && self.agent.is_none() && self.tried.is_none_or(|tried| tried.elapsed() >= RETRY) {
            self.tried = Some(Instant::now());
            self.agent = Client::connect().ok();
            let (provider, address) = (self.provider.clone(), self.caller.address().to_vec());
            self.say(&ToAgent::Enrol(Reach { process: progress::token(), provider, address }));
        }
        if self.again.is_some_and(|since| since.elapsed() >= AGAIN) {
            self.post_all();
        }
        let mut did = 0;
        while let Some(agent) = &self.agent {
            match agent.receive() {
                Ok(Some(message)) => {
                    did += 1;
                    self.heard(message);
                }
                Ok(None) => break,
                Err(_) => self.agent_is_gone(),
            }
        }
        did
    }

    fn heard(&mut self, message: FromAgent) {
        match message {
            FromAgent::Enrolled => {
                self.enrolled = true;
                self.post_all();
            }
            FromAgent::Introduced { index, cookie, reach, uid, peer_index, peer_cookie, ticket } => {
                progress::introduced(index, cookie, reach.process, peer_index, peer_cookie);
                self.admission.invite(ticket, reach.process, uid);
                // One of the two processes asks for a link, if none has room.
                if progress::token() < reach.process && !self.has_room(reach.process) {
                    self.ask(&reach, uid, ticket);
                }
            }
            FromAgent::Refused { index, cookie, why } => {
                if self.posted.get(&index) == Some(&cookie) {
                    // It may succeed later.
                    self.again = self.again.or(Some(Instant::now()));
                }
                progress::refused(index, cookie, why.text());
            }
            FromAgent::Status(_) => {}
        }
    }

    fn has_room(&self, process: u64) -> bool {
        let asked = self.asked.values().any(|(end, _)| end.process == process);
        asked
            || self.standing.iter().any(|standing| {
                standing.end.process == process
                    && !standing.wire.is_over()
                    && !progress::is_full(standing.index)
            })
    }

    fn ask(&mut self, reach: &Reach, uid: u32, ticket: Ticket) {
        let (end, owner) = self.admission.end(reach.process, uid, true, ticket);
        let request = Request { ticket, from: progress::token(), to: reach.process }.bytes();
        match self.caller.connect(&reach.address, &request, progress::SEGMENT, owner) {
            Ok(link) => {
                self.asked.insert(end.number, (end, link));
            }
            Err(error) => self.no_link(&error.to_string()),
        }
    }

    /// A link cannot be made. Connections that wait for it are introduced once more, later.
    fn no_link(&mut self, why: &str) {
        progress::note(format_args!("no link: {why}"));
        self.again = self.again.or(Some(Instant::now()));
    }

    /// Handles the events of links.
    fn with_the_links(&mut self) -> usize {
        let mut did = 0;
        while let Some((end, event)) = self.admission.next() {
            did += 1;
            match (event, end.index.get().copied()) {
                (LinkEvent::Ready, _) => self.stands(end),
                (LinkEvent::Fired(offset, held), Some(index)) => {
                    if let Some(slot) = progress::fired(index, offset, held) {
                        want_kick(index, slot);
                    }
                }
                (LinkEvent::WantsKick(slot), Some(index)) => want_kick(index, slot),
                (LinkEvent::Called(what, value), Some(index)) => self.called(index, what, value),
                (LinkEvent::Over(why), index) => {
                    self.asked.remove(&end.number);
                    if let Some(index) = index {
                        progress::note(format_args!("a link is over: {why}"));
                        progress::over(index);
                    } else {
                        self.no_link(&why);
                    }
                }
                _ => {}
            }
        }
        did
    }

    fn stands(&mut self, end: Arc<End>) {
        let link = match self.asked.remove(&end.number) {
            Some((_, link)) => Some(link),
            None => self.caller.links().into_iter().find(|link| link.number() == end.number),
        };
        let Some(link) = link else { return };
        let Some(shadow) = link.shadow().filter(|shadow| shadow.len() == progress::SEGMENT) else {
            return link.close();
        };
        let made = progress::linked(
            (end.process, end.uid),
            (link.mine(), shadow),
            end.opened,
            end.number,
            u128::from_le_bytes(end.ticket),
        );
        let Some((index, wire)) = made else { return link.close() };
        let _ = end.index.set(index);
        outboxes::add(&link, wire);
        self.standing.push(Standing {
            end,
            link,
            wire,
            index,
            stuck: None,
            closed: false,
            cut: false,
            over: None,
            full: false,
        });
    }

    fn called(&mut self, index: u32, what: u64, value: u64) {
        let Some(standing) = self.standing.iter().find(|standing| standing.index == index) else { return };
        if at_once(&standing.link, index, what, value) {
            return;
        }
        match what {
            call::KICK => self.owed.push(Owed { index, slot: value, counted: None }),
            call::RECALL if !self.recalled.contains(&(index, value)) => self.recalled.push((index, value)),
            call::TAKEN => self.taken.push((index, value)),
            call::HEAR => {
                self.ends.retain(|&(link, slot, _)| (link, slot) != (index, value));
                self.ends.push((index, value, Instant::now() + HEARD));
            }
            _ => {}
        }
    }

    /// Sends the kicks that peers have asked for.
    fn kick(&mut self) -> usize {
        let before = self.owed.len();
        self.owed.retain_mut(|owed| {
            let Some(wire) = progress::wire(owed.index) else { return false };
            match owed.counted {
                None => match progress::kick(owed.index, owed.slot) {
                    Kick::Counted(kick) => {
                        wire.call(call::KICKED, owed.slot);
                        owed.counted = Some((kick, wire.ask()));
                        true
                    }
                    Kick::Later => true,
                    Kick::Nobody => {
                        wire.call(call::KICKED, owed.slot);
                        false
                    }
                },
                Some((kick, echo)) if wire.has_echoed(echo) => {
                    progress::pay(owed.index, owed.slot, kick) == Kick::Later
                }
                Some(_) => !wire.is_over(),
            }
        });
        before - self.owed.len()
    }

    /// Finds work requests that were begun and not written: the thread that began one has died, and
    /// the requests behind it cannot be read.
    fn look_for_stuck(&mut self) {
        for standing in &mut self.standing {
            let stuck = standing.wire.outbox.stuck();
            match (stuck, standing.stuck) {
                (Some(ticket), Some((before, since))) if ticket == before => {
                    if since.elapsed() > STUCK {
                        standing.wire.end();
                    }
                }
                (Some(ticket), _) => standing.stuck = Some((ticket, Instant::now())),
                (None, _) => standing.stuck = None,
            }
        }
    }

    /// Finds connections that were introduced together with many others and have found no slot.
    fn look_for_full(&mut self) {
        let mut newly = false;
        for standing in &mut self.standing {
            let full = progress::is_full(standing.index);
            newly |= full && !standing.full;
            standing.full = full;
        }
        if newly {
            self.post_all();
        }
    }

    /// Moves connections of links that are over back to tcp, and frees such links when nothing uses
    /// them any more.
    fn end_links(&mut self) {
        let mut over = false;
        for standing in &mut self.standing {
            if !standing.wire.is_over() {
                continue;
            }
            over = true;
            standing.over.get_or_insert_with(Instant::now);
            if !standing.closed {
                standing.closed = true;
                standing.link.close();
            }
            if !standing.cut {
                standing.cut = progress::cut(standing.index);
            }
        }
        if over {
            progress::sweep();
        }
    }
}

fn want_kick(index: u32, slot: u64) {
    if let Some(wire) = progress::wire(index) {
        wire.call(call::KICK, slot);
    }
}

fn empty_outboxes() {
    outboxes::empty();
}

impl PortWork for Progress {
    fn run(&mut self) -> usize {
        if !self.serving {
            self.serving = true;
            thread::be_ours(true);
            wire::serve(self.caller.bell(), empty_outboxes);
        }
        wire::disarm();
        let mut did = self.at_the_desk() + self.with_the_agent() + self.with_the_links() + outboxes::empty();
        for standing in &self.standing {
            did += usize::from(progress::answer_offers(standing.index));
        }
        did += self.kick();
        self.recalled.retain(|&(index, slot)| progress::attend(index, slot) == progress::Attended::Later);
        self.taken.retain(|&(index, slot)| !progress::taken(index, slot));
        self.ends.retain(|&(index, slot, until)| {
            progress::hear(index, slot) == progress::Attended::Later && Instant::now() < until
        });
        self.look_for_stuck();
        self.look_for_full();
        self.end_links();
        did
    }

    fn may_sleep(&mut self) -> bool {
        wire::arm();
        let idle = self.standing.iter().all(|standing| standing.wire.outbox.stuck().is_none());
        idle && !desk::has_requests() && !self.admission.has_news() && self.owed.iter().all(Owed::waits)
    }

    fn gone(&mut self, why: &str) {
        progress::note(format_args!("the device is gone, and connections stay on tcp: {why}"));
        self.gone = true;
        self.agent_is_gone();
        self.asked.clear();
    }

    fn descriptor(&self) -> Option<i32> {
        self.agent.as_ref().map(|agent| agent.as_raw_fd())
    }

    fn patience(&self) -> Option<Duration> {
        // A lock that somebody had, or a peer that has not answered yet.
        let cutting =
            |standing: &Standing| !standing.cut && standing.over.is_some_and(|since| since.elapsed() < HEARD);
        if self.standing.iter().any(cutting) {
            return Some(SOON);
        }
        if !(self.recalled.is_empty() && self.taken.is_empty() && self.ends.is_empty()) {
            return Some(SOON);
        }
        if self.standing.iter().any(|standing| standing.wire.is_over()) {
            return Some(PATIENCE);
        }
        match &self.agent {
            None if self.gone => None,
            None => Some(RETRY),
            Some(_) if self.again.is_some() => Some(AGAIN),
            Some(_) => None,
        }
    }
}
