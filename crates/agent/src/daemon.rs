//! The agent: one thread, which listens to the processes of its host and to the agents of other
//! hosts. Everything that it stores is bounded. It needs nothing of that after a restart: processes
//! connect again and post what they have.
//!
//! An introduction goes like this. A process posts an end. The agent asks the kernel (sock_diag)
//! whether that process's user has this end, and asks the agent at the other end's address, over
//! Noise NNpsk0 (`cluster::channel`). That agent has the other end posted already, or remembers the
//! question until it is. Of the two processes the one with the smaller name will ask the other one
//! for a link. It gets the introduction last, so that the other expects the request.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv6Addr, TcpListener};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use cluster::channel::{Channel, End};
use cluster::client;
use cluster::key::Key;
use cluster::wire::{Between, FromAgent, MOST, Message as _, Reach, Ticket, ToAgent, Why};
use fabric::credentials::{self, User};
use fabric::sys;
use host::addr::{Addr, octets};
use host::diag;
use options::Networks;

use crate::status::{Counts, Other, Report};
use crate::{listening, place};

/// The most processes, posted ends of a process, and agents that an agent serves.
const PROCESSES: usize = 4096;
const POSTS: usize = 1 << 16;
const CHANNELS: usize = 4096;
/// The most questions that are open, or remembered.
const QUESTIONS: usize = 1 << 16;
/// How long a question stays open, and how long a question of others is remembered.
const OPEN: Duration = Duration::from_secs(60);
/// How long an agent that was not there, or had another key, is not asked again.
const AWAY: Duration = Duration::from_secs(5);
/// How long a connection may be idle.
const IDLE: Duration = Duration::from_secs(300);
/// Time between two searches for entries that are too old.
const TICK: Duration = Duration::from_secs(1);

/// The settings of an agent.
pub struct Config {
    /// The networks of the cluster.
    pub networks: Networks,
    /// The key that all agents of the cluster have.
    pub key: Key,
    /// The port where they listen.
    pub port: u16,
    /// The agent ends when nobody has needed it for so long.
    pub idle: Option<Duration>,
}

/// The number of a connection to a process or an agent: never used again.
type Id = u64;
/// Both addresses of an end.
type Pair = ([u8; 16], u16, [u8; 16], u16);

fn pair(own: Addr, peer: Addr) -> Pair {
    (own.ip, own.port, peer.ip, peer.port)
}

struct Process {
    socket: OwnedFd,
    user: User,
    reach: Option<Reach>,
    posts: HashMap<u32, (u64, Pair)>,
}

/// An end that a process has.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Posted {
    process: Id,
    index: u32,
    cookie: u64,
}

/// A question of ours to another agent.
struct Question {
    posted: Posted,
    ticket: Ticket,
    channel: Id,
    since: Instant,
}

/// A question of another agent's, about an end that nobody has posted yet.
struct Remembered {
    channel: Id,
    ask: Between,
    since: Instant,
}

/// A process that gets its introduction when the other agent has told its own process.
struct Held {
    process: Id,
    message: FromAgent,
    since: Instant,
}

struct Agent {
    config: Config,
    local: OwnedFd,
    listener: TcpListener,
    next: Id,
    processes: HashMap<Id, Process>,
    channels: HashMap<Id, Channel>,
    /// Agents that were not there, or had another key, and when that was.
    away: HashMap<[u8; 16], (Why, Instant)>,
    posts: HashMap<Pair, Posted>,
    questions: HashMap<u64, Question>,
    remembered: HashMap<Pair, Remembered>,
    held: HashMap<(Id, u64), Held>,
    counts: Counts,
    needed: Instant,
}

/// Runs the agent until it has been idle for long enough. Calls `ready` when it listens.
pub fn run(config: Config, ready: impl FnOnce()) -> Result<(), String> {
    let local = listening::local().map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => "an agent of this user runs here already".to_string(),
        _ => format!("UNIX socket: {error}"),
    })?;
    let port = config.port;
    let listener = listening::to_agents(port).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("port {port} is in use (another user's agent?); set SHUNT_AGENT_PORT on all hosts")
        }
        _ => format!("port {port}: {error}"),
    })?;
    let mut agent = Agent {
        config,
        local,
        listener,
        next: 1,
        processes: HashMap::new(),
        channels: HashMap::new(),
        away: HashMap::new(),
        posts: HashMap::new(),
        questions: HashMap::new(),
        remembered: HashMap::new(),
        held: HashMap::new(),
        counts: Counts::default(),
        needed: Instant::now(),
    };
    ready();
    agent.serve()
}

/// The connection that is ready.
enum Who {
    Local,
    Listener,
    Process(Id),
    Channel(Id),
}

impl Agent {
    fn serve(&mut self) -> Result<(), String> {
        let mut ticked = Instant::now();
        loop {
            let (who, mut polls) = self.watched();
            // SAFETY: an array of so many.
            let got = unsafe {
                libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, TICK.as_millis() as i32)
            };
            let error = io::Error::last_os_error();
            if got < 0 && error.kind() != io::ErrorKind::Interrupted {
                return Err(format!("poll: {error}"));
            }
            for (who, _) in who.iter().zip(&polls).filter(|(_, poll)| got > 0 && poll.revents != 0) {
                match *who {
                    Who::Local => self.accept_process(),
                    Who::Listener => self.accept_agent(),
                    Who::Process(id) => self.hear_process(id),
                    Who::Channel(id) => self.hear_agent(id),
                }
            }
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                self.tick();
                if self.config.idle.is_some_and(|idle| self.needed.elapsed() >= idle) {
                    return Ok(());
                }
            }
        }
    }

    fn watched(&self) -> (Vec<Who>, Vec<libc::pollfd>) {
        let poll = |fd: RawFd, writes: bool| {
            let events = if writes { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
            libc::pollfd { fd, events, revents: 0 }
        };
        let mut who = vec![Who::Local, Who::Listener];
        let mut polls = vec![poll(self.local.as_raw_fd(), false), poll(self.listener.as_raw_fd(), false)];
        for (&id, process) in &self.processes {
            who.push(Who::Process(id));
            polls.push(poll(process.socket.as_raw_fd(), false));
        }
        for (&id, channel) in &self.channels {
            who.push(Who::Channel(id));
            polls.push(poll(channel.as_raw_fd(), channel.wants_to_write()));
        }
        (who, polls)
    }

    fn id(&mut self) -> Id {
        self.next += 1;
        self.next
    }

    /// Drops entries that are too old.
    fn tick(&mut self) {
        self.questions.retain(|_, question| question.since.elapsed() < OPEN);
        self.remembered.retain(|_, remembered| remembered.since.elapsed() < OPEN);
        self.held.retain(|_, held| held.since.elapsed() < OPEN);
        self.away.retain(|_, (_, since)| since.elapsed() < AWAY);
        let channels: Vec<Id> = self.channels.keys().copied().collect();
        for id in channels {
            // A handshake times out although nothing comes.
            self.hear_agent(id);
        }
        self.channels.retain(|_, channel| channel.used.elapsed() < IDLE);
        if !self.processes.is_empty() {
            self.needed = Instant::now();
        }
    }

    // --- processes ---

    fn accept_process(&mut self) {
        loop {
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let (none, no_len) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: no memory is passed.
            let fd = unsafe { libc::accept4(self.local.as_raw_fd(), none, no_len, flags) };
            if fd < 0 {
                return;
            }
            // SAFETY: it was just made.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            let allowed = User::at(socket.as_raw_fd()).map(|(user, _)| user);
            let Some(user) = allowed.filter(|user| user.is_root() || credentials::acts_for(user.number()))
            else {
                self.counts.foreign += 1;
                continue;
            };
            if self.processes.len() >= PROCESSES {
                continue;
            }
            self.needed = Instant::now();
            let id = self.id();
            self.processes.insert(id, Process { socket, user, reach: None, posts: HashMap::new() });
        }
    }

    fn hear_process(&mut self, id: Id) {
        loop {
            let Some(process) = self.processes.get(&id) else { return };
            let mut bytes = [0; MOST];
            let message = match client::receive(&process.socket, &mut bytes) {
                Ok(None) => return,
                Ok(Some(len)) => ToAgent::parse(&bytes[..len]),
                Err(_) => return self.process_is_gone(id),
            };
            let Some(message) = message else {
                self.counts.garbled += 1;
                return self.process_is_gone(id);
            };
            match message {
                ToAgent::Enrol(reach) => {
                    if let Some(process) = self.processes.get_mut(&id) {
                        process.reach = Some(reach);
                    }
                    self.tell(id, &FromAgent::Enrolled);
                }
                ToAgent::Post { index, cookie, own, peer } => self.post(id, index, cookie, own, peer),
                ToAgent::Withdraw { index, cookie } => self.withdraw(id, index, cookie),
                ToAgent::Status => {
                    let report = serde_json::to_vec(&self.report()).unwrap_or_default();
                    self.tell(id, &FromAgent::Status(report));
                }
            }
        }
    }

    fn process_is_gone(&mut self, id: Id) {
        let Some(gone) = self.processes.remove(&id) else { return };
        for (index, (cookie, pair)) in gone.posts {
            self.unpost(id, index, cookie, pair);
        }
    }

    fn unpost(&mut self, process: Id, index: u32, cookie: u64, pair: Pair) {
        let gone = Posted { process, index, cookie };
        if self.posts.get(&pair) == Some(&gone) {
            self.posts.remove(&pair);
        }
        self.questions.retain(|_, question| question.posted != gone);
    }

    fn withdraw(&mut self, id: Id, index: u32, cookie: u64) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        if process.posts.get(&index).is_some_and(|posted| posted.0 == cookie)
            && let Some((cookie, pair)) = process.posts.remove(&index)
        {
            self.unpost(id, index, cookie, pair);
        }
    }

    /// Sends a process a message. A process that does not read is given up.
    fn tell(&mut self, id: Id, message: &FromAgent) {
        match message {
            FromAgent::Introduced { .. } => self.counts.introduced += 1,
            FromAgent::Refused { why, .. } => *self.counts.refused.entry(why.text().into()).or_default() += 1,
            _ => {}
        }
        if let Some(process) = self.processes.get(&id)
            && client::send(&process.socket, &message.bytes()).is_err()
        {
            self.process_is_gone(id);
        }
    }

    fn refuse(&mut self, to: Posted, why: Why) {
        let Posted { process, index, cookie } = to;
        self.tell(process, &FromAgent::Refused { index, cookie, why });
    }

    fn post(&mut self, id: Id, index: u32, cookie: u64, own: Addr, peer: Addr) {
        let posted = Posted { process: id, index, cookie };
        let Some(process) = self.processes.get_mut(&id) else { return };
        let Some(reach) = process.reach.clone() else { return self.process_is_gone(id) };
        let user = process.user;
        if !self.config.networks.contains(own.ip) || !self.config.networks.contains(peer.ip) {
            return self.refuse(posted, Why::NotInCluster);
        }
        if process.posts.len() >= POSTS || self.posts.len() >= POSTS * 4 {
            return self.refuse(posted, Why::TooMany);
        }
        let record = diag::lookup(own, peer);
        if !record.is_ok_and(|record| record.cookie == cookie && credentials::is_of(record.uid, user)) {
            return self.refuse(posted, Why::Unproved);
        }
        if let Some((cookie, pair)) = process.posts.insert(index, (cookie, pair(own, peer))) {
            self.unpost(id, index, cookie, pair);
        }
        self.posts.insert(pair(own, peer), posted);
        if let Some(remembered) = self.remembered.remove(&pair(own, peer)) {
            return self.answer(remembered.channel, remembered.ask);
        }
        self.ask(posted, own, peer, reach, user.number());
    }

    // --- agents ---

    /// Asks the agent at the other end.
    fn ask(&mut self, posted: Posted, own: Addr, peer: Addr, reach: Reach, uid: u32) {
        if let Some(&(why, _)) = self.away.get(&peer.ip) {
            return self.refuse(posted, why);
        }
        if self.questions.len() >= QUESTIONS {
            return self.refuse(posted, Why::TooMany);
        }
        let open = self.channels.iter().filter(|(_, channel)| channel.ip == peer.ip && channel.outgoing);
        let channel = match open.map(|(&id, _)| id).next() {
            Some(id) => id,
            None if self.channels.len() >= CHANNELS => return self.refuse(posted, Why::TooMany),
            None => match Channel::connect(None, peer.ip, self.config.port, &self.config.key) {
                Ok(channel) => {
                    let id = self.id();
                    self.channels.insert(id, channel);
                    id
                }
                Err(_) => return self.refuse(posted, Why::NoAgent),
            },
        };
        let (id, ticket) = (sys::random(), ticket());
        self.questions.insert(id, Question { posted, ticket, channel, since: Instant::now() });
        let (index, cookie) = (posted.index, posted.cookie);
        self.say(channel, Between::Ask { id, own, peer, reach, uid, index, cookie, ticket });
    }

    fn say(&mut self, id: Id, message: Between) {
        if let Some(channel) = self.channels.get_mut(&id)
            && let Err(end) = channel.say(message)
        {
            self.agent_is_gone(id, end);
        }
    }

    fn accept_agent(&mut self) {
        while let Ok((stream, from)) = self.listener.accept() {
            let ip = octets(from.ip().to_canonical());
            if !self.config.networks.contains(ip) {
                self.counts.outside += 1;
                eprintln!("shunt agent: {from}: not in the cluster's networks");
                continue;
            }
            if self.channels.len() >= CHANNELS {
                continue;
            }
            if let Ok(channel) = Channel::accept(stream, ip, &self.config.key) {
                let id = self.id();
                self.channels.insert(id, channel);
            }
        }
    }

    fn hear_agent(&mut self, id: Id) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let mut said = Vec::new();
        let done = channel.go_on(|message| said.push(message));
        for message in said {
            match message {
                ask @ Between::Ask { .. } => self.asked(id, ask),
                Between::Found { id: question, reach, uid, index, cookie } => {
                    self.found(id, question, reach, uid, index, cookie);
                }
                Between::Meet { uid, place } => return self.meet(id, uid, &place),
                Between::Met => {}
                Between::Told { id: question } => {
                    if let Some(held) = self.held.remove(&(id, question)) {
                        self.tell(held.process, &held.message);
                    }
                }
                Between::Not { id: question, why } => {
                    if self.questions.get(&question).is_some_and(|asked| asked.channel == id)
                        && let Some(question) = self.questions.remove(&question)
                    {
                        self.refuse(question.posted, why);
                    }
                }
            }
        }
        if let Err(end) = done {
            self.agent_is_gone(id, end);
        }
    }

    /// A program of another host wants a Virtual Interface of this host. Its connection goes to the
    /// program that waits there. The two prove to each other once more that they have the key, and
    /// need no agent from then on.
    fn meet(&mut self, id: Id, uid: u32, place: &[u8]) {
        self.needed = Instant::now();
        let Some(mut channel) = self.channels.remove(&id) else { return };
        let there = credentials::acts_for(uid).then(|| place::connect(uid, place)).flatten();
        let Some(there) = there else {
            if channel.say(Between::Not { id: 0, why: Why::Nobody }).is_ok() {
                self.channels.insert(id, channel);
            }
            return;
        };
        self.counts.met += 1;
        // The program sends nothing before it has read that.
        if channel.say(Between::Met).is_ok() {
            place::hand_over(&there, channel.stream().as_fd());
        }
    }

    fn agent_is_gone(&mut self, id: Id, end: End) {
        let Some(gone) = self.channels.remove(&id) else { return };
        let (name, known) = (name(gone.ip), gone.is_open());
        match end {
            End::Gone => {}
            End::WrongKey => {
                self.counts.wrong_key += 1;
                eprintln!("shunt agent: {name}: has another key");
            }
            End::Garbled => {
                self.counts.garbled += 1;
                eprintln!("shunt agent: {name}: sends malformed messages");
            }
            End::Late => self.counts.late += 1,
        }
        let why = if end == End::WrongKey { Why::WrongKey } else { Why::NoAgent };
        if gone.outgoing && !known {
            self.away.insert(gone.ip, (why, Instant::now()));
        }
        let asked: Vec<u64> =
            self.questions.iter().filter(|(_, asked)| asked.channel == id).map(|(&id, _)| id).collect();
        for question in asked {
            if let Some(question) = self.questions.remove(&question) {
                self.refuse(question.posted, why);
            }
        }
    }

    /// Handles another agent's question.
    fn asked(&mut self, channel: Id, ask: Between) {
        let Between::Ask { id, own, peer, ref reach, .. } = ask else { return };
        if !self.config.networks.contains(own.ip) || !self.config.networks.contains(peer.ip) {
            return self.say(channel, Between::Not { id, why: Why::NotInCluster });
        }
        if let Some(&posted) = self.posts.get(&pair(peer, own)) {
            // Both agents may have asked at once. Then the question of the process with the smaller
            // name counts, and both agents drop the other one.
            let crossing = self.questions.iter().find(|(_, question)| question.posted == posted);
            if let Some((&crossing, _)) = crossing {
                let own = self.processes.get(&posted.process).and_then(|process| process.reach.as_ref());
                if own.is_some_and(|own| own.process < reach.process) {
                    return;
                }
                self.questions.remove(&crossing);
            }
            return self.answer(channel, ask);
        }
        if self.remembered.len() >= QUESTIONS {
            return self.say(channel, Between::Not { id, why: Why::TooMany });
        }
        self.remembered.insert(pair(peer, own), Remembered { channel, ask, since: Instant::now() });
    }

    /// Answers: the end that is asked about is posted here.
    fn answer(&mut self, channel: Id, ask: Between) {
        let Between::Ask { id, own, peer, reach, uid, index: peer_index, cookie: peer_cookie, ticket } = ask
        else {
            return;
        };
        let Some(&Posted { process, index, cookie }) = self.posts.get(&pair(peer, own)) else { return };
        let Some(here) = self.processes.get(&process) else { return };
        let Some(own_reach) = here.reach.clone() else { return };
        if own_reach.provider != reach.provider {
            self.refuse(Posted { process, index, cookie }, Why::Other);
            return self.say(channel, Between::Not { id, why: Why::Other });
        }
        let found = Between::Found { id, reach: own_reach.clone(), uid: here.user.number(), index, cookie };
        let last = own_reach.process < reach.process;
        let message = FromAgent::Introduced { index, cookie, reach, uid, peer_index, peer_cookie, ticket };
        if last {
            if self.held.len() < QUESTIONS {
                self.held.insert((channel, id), Held { process, message, since: Instant::now() });
            }
        } else {
            self.tell(process, &message);
        }
        self.say(channel, found);
    }

    /// Handles the answer: the other agent knows the end that we have asked about.
    fn found(&mut self, channel: Id, id: u64, reach: Reach, uid: u32, peer_index: u32, peer_cookie: u64) {
        if self.questions.get(&id).is_none_or(|question| question.channel != channel) {
            return;
        }
        let Some(Question { posted, ticket, .. }) = self.questions.remove(&id) else { return };
        let Posted { process, index, cookie } = posted;
        self.tell(
            process,
            &FromAgent::Introduced { index, cookie, reach, uid, peer_index, peer_cookie, ticket },
        );
        self.say(channel, Between::Told { id });
    }

    /// The report on this agent.
    fn report(&self) -> Report {
        let agents = self.channels.values().take(1000).map(|channel| Other {
            address: name(channel.ip),
            state: if channel.is_open() { "open" } else { "opening" }.into(),
            outgoing: channel.outgoing,
        });
        let away = self.away.iter().take(1000).map(|(&ip, (why, _))| (name(ip), why.text().into()));
        Report {
            port: self.config.port,
            // The client that asks for the report is not counted.
            processes: self.processes.values().filter(|process| process.reach.is_some()).count(),
            posted: self.posts.len(),
            agents: agents.collect(),
            away: away.collect(),
            counts: self.counts.clone(),
        }
    }
}

fn name(ip: [u8; 16]) -> String {
    let ip = Ipv6Addr::from(ip);
    ip.to_ipv4_mapped().map_or(ip.to_string(), |v4| v4.to_string())
}

fn ticket() -> Ticket {
    let mut ticket = [0; 16];
    ticket[..8].copy_from_slice(&sys::random().to_le_bytes());
    ticket[8..].copy_from_slice(&sys::random().to_le_bytes());
    ticket
}
