//! What the carrier does, again and again, from the port's thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::client::Client;
use cluster::wire::{FromAgent, Reach, Ticket, ToAgent};
use ofi::port::Caller;
use ofi::{Errands, Link, Port};
use sockets::peering::desk;
use sockets::peering::remote::{self, Kick};
use sockets::peering::wire::{self, Wire, call, task};
use sockets::thread;

use crate::links::{End, Gatekeeper, Request, Told, at_once};
use crate::outboxes;

/// How long until the agent is looked for again.
const RETRY: Duration = Duration::from_secs(2);
/// How long until what was refused, or found no link, is posted again.
const AGAIN: Duration = Duration::from_secs(10);
/// How often it is looked whether a link that is over can be freed.
const PATIENCE: Duration = Duration::from_millis(200);
/// How soon it is looked again after what a lock, or a full companion, has kept from being done.
const SOON: Duration = Duration::from_millis(1);
/// So long it is looked for an END that was told. One that lies behind bytes that the program does not read it finds itself, when it reads them.
const HEARD: Duration = Duration::from_secs(1);
/// How long an errand may be begun and not told.
const STUCK: Duration = Duration::from_secs(2);

/// A link that stands.
struct Standing {
    end: Arc<End>,
    link: Arc<Link>,
    wire: &'static Wire,
    index: u32,
    /// The errand that has begun and not come, and since when.
    stuck: Option<(u64, Instant)>,
    /// It is over: this end has closed it, and its connections have gone back to tcp.
    closed: bool,
    cut: bool,
    /// It has had no free slot, since when whoever waits for one is introduced again: for another link.
    full: bool,
}

/// A kick that a peer has asked for.
struct Owed {
    index: u32,
    slot: u64,
    /// It has been counted, and is sent when this has been echoed.
    echo: Option<u64>,
}

impl Owed {
    /// Whether there is nothing to be done for it until the peer has answered. Not if somebody had the connection when the answer came: no other comes.
    fn waits(&self) -> bool {
        self.echo.is_some_and(|echo| remote::wire(self.index).is_some_and(|wire| !wire.has_echoed(echo)))
    }
}

pub struct Carrier {
    caller: Caller,
    keeper: Gatekeeper,
    provider: String,
    serving: bool,
    agent: Option<Client>,
    enrolled: bool,
    tried: Option<Instant>,
    /// What has been posted, and is posted again with an agent that comes back.
    posted: HashMap<u32, u64>,
    standing: Vec<Standing>,
    /// Links that were asked for: they live until they stand, or are over.
    asked: HashMap<u64, (Arc<End>, Arc<Link>)>,
    owed: Vec<Owed>,
    /// Links and slots of what peers want back by tcp.
    recalled: Vec<(u32, u64)>,
    /// Those to which peers have sent an END, and when it is looked for no more.
    ends: Vec<(u32, u64, Instant)>,
    /// Since when something is to be posted again.
    again: Option<Instant>,
    /// The device is gone: nobody is to be introduced any more.
    gone: bool,
}

impl Carrier {
    pub fn new(port: &Port, keeper: Gatekeeper, provider: &str) -> Carrier {
        Carrier {
            caller: port.caller(),
            keeper,
            provider: provider.into(),
            serving: false,
            agent: None,
            enrolled: false,
            tried: None,
            posted: HashMap::new(),
            standing: Vec::new(),
            asked: HashMap::new(),
            owed: Vec::new(),
            recalled: Vec::new(),
            ends: Vec::new(),
            again: None,
            gone: false,
        }
    }

    /// What is to be done that is not of one link.
    fn at_the_desk(&mut self) -> usize {
        let mut did = 0;
        while let Some(errand) = desk::next() {
            did += 1;
            let index = errand.at as u32;
            match errand.what {
                task::POST => {
                    self.posted.insert(index, errand.value);
                    self.post(index, errand.value);
                }
                task::WITHDRAW if self.posted.get(&index) == Some(&errand.value) => {
                    self.posted.remove(&index);
                    self.say(&ToAgent::Withdraw { index, cookie: errand.value });
                }
                task::RELEASE => self.forget(errand.at),
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
            && let Some((own, peer)) = remote::posted(index, cookie)
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

    /// Finds the agent, and hears what it says.
    fn with_the_agent(&mut self) -> usize {
        if !self.gone && self.agent.is_none() && self.tried.is_none_or(|tried| tried.elapsed() >= RETRY) {
            self.tried = Some(Instant::now());
            self.agent = Client::connect().ok();
            let (provider, address) = (self.provider.clone(), self.caller.address().to_vec());
            self.say(&ToAgent::Enrol(Reach { process: remote::token(), provider, address }));
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
                remote::introduced(index, cookie, reach.process, peer_index, peer_cookie);
                self.keeper.invite(ticket, reach.process, uid);
                // One of the two asks for a link, if there is none that has room.
                if remote::token() < reach.process && !self.has_room(reach.process) {
                    self.ask(&reach, uid, ticket);
                }
            }
            FromAgent::Refused { index, cookie, why } => {
                if self.posted.get(&index) == Some(&cookie) {
                    // It may be otherwise later.
                    self.again = self.again.or(Some(Instant::now()));
                }
                remote::refused(index, cookie, why.text());
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
                    && !remote::is_full(standing.index)
            })
    }

    fn ask(&mut self, reach: &Reach, uid: u32, ticket: Ticket) {
        let (end, owner) = self.keeper.end(reach.process, uid, true, ticket);
        let request = Request { ticket, from: remote::token(), to: reach.process }.bytes();
        match self.caller.connect(&reach.address, &request, remote::SEGMENT, owner) {
            Ok(link) => {
                self.asked.insert(end.number, (end, link));
            }
            Err(error) => self.no_link(&error.to_string()),
        }
    }

    /// A link cannot be made. Whoever waits for it is introduced once more, later.
    fn no_link(&mut self, why: &str) {
        remote::note(format_args!("no link: {why}"));
        self.again = self.again.or(Some(Instant::now()));
    }

    /// Does what links have told.
    fn with_the_links(&mut self) -> usize {
        let mut did = 0;
        while let Some((end, told)) = self.keeper.next() {
            did += 1;
            match (told, end.index.get().copied()) {
                (Told::Ready, _) => self.stands(end),
                (Told::Fired(offset, held), Some(index)) => {
                    if let Some(slot) = remote::fired(index, offset, held) {
                        want_kick(index, slot);
                    }
                }
                (Told::WantsKick(slot), Some(index)) => want_kick(index, slot),
                (Told::Called(what, value), Some(index)) => self.called(index, what, value),
                (Told::Over(why), index) => {
                    self.asked.remove(&end.number);
                    if let Some(index) = index {
                        remote::note(format_args!("a link is over: {why}"));
                        remote::over(index);
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
        let Some(shadow) = link.shadow().filter(|shadow| shadow.len() == remote::SEGMENT) else {
            return link.close();
        };
        let made = remote::linked(
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
            full: false,
        });
    }

    fn called(&mut self, index: u32, what: u64, value: u64) {
        let Some(standing) = self.standing.iter().find(|standing| standing.index == index) else { return };
        if at_once(&standing.link, index, what, value) {
            return;
        }
        match what {
            call::KICK => self.owed.push(Owed { index, slot: value, echo: None }),
            call::RECALL if !self.recalled.contains(&(index, value)) => self.recalled.push((index, value)),
            call::HEAR => {
                self.ends.retain(|&(link, slot, _)| (link, slot) != (index, value));
                self.ends.push((index, value, Instant::now() + HEARD));
            }
            _ => {}
        }
    }

    /// Kicks that peers have asked for.
    fn kick(&mut self) -> usize {
        let before = self.owed.len();
        self.owed.retain_mut(|owed| {
            let Some(wire) = remote::wire(owed.index) else { return false };
            match owed.echo {
                None => match remote::kick(owed.index, owed.slot) {
                    Kick::Counted => {
                        wire.call(call::KICKED, owed.slot);
                        owed.echo = Some(wire.ask());
                        true
                    }
                    Kick::Later => true,
                    Kick::Nobody => {
                        wire.call(call::KICKED, owed.slot);
                        false
                    }
                },
                Some(echo) if wire.has_echoed(echo) => remote::pay(owed.index, owed.slot) == Kick::Later,
                Some(_) => !wire.is_over(),
            }
        });
        before - self.owed.len()
    }

    /// Whoever began an errand and does not end it has died in the middle: what comes behind it cannot be told from it.
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

    /// Connections of many that were introduced at once have found no slot.
    fn look_for_full(&mut self) {
        let mut newly = false;
        for standing in &mut self.standing {
            let full = remote::is_full(standing.index);
            newly |= full && !standing.full;
            standing.full = full;
        }
        if newly {
            self.post_all();
        }
    }

    /// What went by links that are over goes back to tcp, and when nothing does any more they are freed.
    fn end_links(&mut self) {
        let mut over = false;
        for standing in &mut self.standing {
            if !standing.wire.is_over() {
                continue;
            }
            over = true;
            if !standing.closed {
                standing.closed = true;
                standing.link.close();
            }
            if !standing.cut {
                standing.cut = remote::cut(standing.index);
            }
        }
        if over {
            remote::sweep();
        }
    }
}

fn want_kick(index: u32, slot: u64) {
    if let Some(wire) = remote::wire(index) {
        wire.call(call::KICK, slot);
    }
}

fn empty_outboxes() {
    outboxes::empty();
}

impl Errands for Carrier {
    fn run(&mut self) -> usize {
        if !self.serving {
            self.serving = true;
            thread::be_ours(true);
            wire::serve(self.caller.bell(), empty_outboxes);
        }
        wire::disarm();
        let mut did = self.at_the_desk() + self.with_the_agent() + self.with_the_links() + outboxes::empty();
        for standing in &self.standing {
            did += usize::from(remote::answer_offers(standing.index));
        }
        did += self.kick();
        self.recalled.retain(|&(index, slot)| remote::attend(index, slot) == remote::Attended::Later);
        self.ends.retain(|&(index, slot, until)| {
            remote::hear(index, slot) == remote::Attended::Later && Instant::now() < until
        });
        self.look_for_stuck();
        self.look_for_full();
        self.end_links();
        did
    }

    fn may_sleep(&mut self) -> bool {
        wire::arm();
        let idle = self.standing.iter().all(|standing| standing.wire.outbox.stuck().is_none());
        idle && !desk::has_errands() && !self.keeper.has_news() && self.owed.iter().all(Owed::waits)
    }

    fn gone(&mut self, why: &str) {
        remote::note(format_args!("the device is gone, and connections stay on tcp: {why}"));
        self.gone = true;
        self.agent_is_gone();
        self.asked.clear();
    }

    fn descriptor(&self) -> Option<i32> {
        self.agent.as_ref().map(|agent| agent.as_raw_fd())
    }

    fn patience(&self) -> Option<Duration> {
        if !(self.recalled.is_empty() && self.ends.is_empty()) {
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
