//! ETHOM between hosts of different machines. The link is one of the crate `ofi`: remote memory
//! over any network that libfabric drives. Before it is made the two hosts connect by TCP, at the
//! addresses of the table, and prove to each other that they have the cluster's key, as agents do
//! and with their code ([`cluster::channel`]). Then each sends its number and the address of its
//! fabric ([`Hello`]). The host with the lower number calls, here as in memory, and then asks for
//! the link by the ticket that both know.
//!
//! The TCP connection stays, unused: its end is the peer's, as a UNIX socket's is on one machine. A
//! machine that vanishes ends no connection. So both ends ask each other by the link itself, twice
//! a second, for an answer that cannot be guessed. A host that does not answer for `SILENCE` counts
//! as gone.
//!
//! The differences from memory: the receiver of a word must handle it itself ([`ofi::Link::help`]),
//! so a receiver that polls helps. For one that sleeps the port's thread does it, and rings its
//! bell ([`End::fired`]). A sender does not know what has arrived before the peer has said how far
//! it has read; the queue needs nothing else.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cluster::channel::{self, Channel};
use cluster::key::Key;
use cluster::wire::Ticket;
use fabric::sync::Ordering;
use fabric::sys;
use host::addr::octets;
use ofi::{Owner, Port};

pub mod hello;
pub mod path;

use crate::link::Link;
use crate::net::Net;
use crate::peers::Snapshot;
use crate::segment;
use hello::{REQUEST, ticket_of};
use path::End;

pub use hello::Hello;
pub use path::{ASK, Gather, RemotePath};

/// The most time of two hosts from the first message to the link, in nanoseconds.
const HANDSHAKE_TIMEOUT: u64 = 3_000_000_000;
/// Connections without a hello yet.
const STRANGERS: usize = 64;
/// The network that links hosts of different machines, and the key that they prove to have.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// libfabric's provider. None: the best that it finds, but not TCP.
    pub provider: Option<&'static str>,
    /// The cluster's key.
    pub key: Key,
}

/// Finds these settings, or says what is missing or wrong. Called when there are such hosts, and
/// again as long as they cannot be reached.
pub type Find = dyn Fn() -> Result<Settings, String> + Send + Sync;

/// A connection without a hello yet.
struct Stranger {
    channel: Channel<Hello>,
    /// The host that we have called, if we have called it.
    called: Option<(u16, Ticket)>,
    from: IpAddr,
    until: u64,
}

/// A peer that has sent its hello, and whose link is not established yet.
struct Coming {
    end: Arc<End>,
    ticket: Ticket,
    stream: TcpStream,
    /// The link, if we have asked for it.
    link: Option<Arc<ofi::Link>>,
    until: u64,
}

type Invited = Arc<Mutex<HashMap<Ticket, Arc<End>>>>;

/// The place where hosts of other machines connect; the keeper has it.
pub struct Acceptor {
    own: SocketAddr,
    settings: Settings,
    listener: TcpListener,
    provider: String,
    port: Port,
    /// The tickets with which links may be asked for.
    invited: Invited,
    strangers: Vec<Stranger>,
    coming: Vec<Coming>,
}

/// The result for a peer, or for an address of which no host is known.
pub enum News {
    /// Its link is established.
    Linked(Link),
    /// It is not linked, and why.
    Failed(Option<u16>, IpAddr, String),
}

impl Acceptor {
    /// Opens it at this host's address of the table. The error says what is missing.
    pub fn open(net: &Net, own: SocketAddr, settings: Settings) -> Result<Acceptor, String> {
        let found = ofi::find(settings.provider, Some(own.ip())).map_err(|error| error.to_string())?;
        // TCP is slower than ETHOS, so it is used only if the user asks for it.
        let fits = |found: &&ofi::Found| settings.provider.is_some() || found.provider != ofi::TEST_PROVIDER;
        let found = found.iter().find(fits).ok_or_else(|| {
            let wanted = settings.provider.unwrap_or("fast");
            format!(
                "libfabric finds no {wanted} network at {}; `fi_info` lists what there is, and option fabric (SHUNT_FABRIC) says what to use: \
                 tcp, to test with, works anywhere",
                own.ip()
            )
        })?;
        let listener = TcpListener::bind(own).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener =
            listener.map_err(|error| format!("{own}, which the table gives this host: {error}"))?;
        let invited = Invited::default();
        let (guests, len) = (Arc::clone(&invited), segment::bytes(net.settings.queue));
        let gate = move |words: &[u8]| {
            let end: Arc<dyn Owner> = lock(&guests).remove(&ticket_of(words)?)?;
            Some((len, end))
        };
        let port =
            Port::open(found, Box::new(gate)).map_err(|error| format!("{}: {error}", found.provider))?;
        let provider = found.provider.clone();
        Ok(Acceptor {
            own,
            settings,
            listener,
            provider,
            port,
            invited,
            strangers: Vec::new(),
            coming: Vec::new(),
        })
    }

    /// The settings that it was opened with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Its provider.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// Whether something is under way that times out when nothing comes.
    pub fn is_busy(&self) -> bool {
        !self.strangers.is_empty() || !self.coming.is_empty()
    }

    /// The descriptors to wait for, with the events of each.
    pub fn descriptors(&self) -> impl Iterator<Item = (RawFd, i16)> {
        let listener = self.has_room().then(|| (self.listener.as_raw_fd(), libc::POLLIN));
        let strangers = self.strangers.iter().map(|Stranger { channel, .. }| {
            let more = if channel.wants_to_write() { libc::POLLOUT } else { 0 };
            (channel.as_raw_fd(), libc::POLLIN | more)
        });
        listener.into_iter().chain(strangers)
    }

    /// Whether one more may connect.
    fn has_room(&self) -> bool {
        self.strangers.iter().filter(|stranger| stranger.called.is_none()).count() < STRANGERS
    }

    /// Whether a host is being called, or has connected.
    pub fn knows(&self, id: u16) -> bool {
        self.coming.iter().any(|coming| coming.end.peer == id)
            || self.strangers.iter().any(|stranger| stranger.called.is_some_and(|(called, _)| called == id))
    }

    /// Calls a host.
    pub fn call(&mut self, net: &Net, id: u16, address: SocketAddr) -> io::Result<()> {
        let ticket = (u128::from(sys::random()) << 64 | u128::from(sys::random())).to_le_bytes();
        // From the address that the table has for us.
        let from = Some(self.own.ip());
        let mut channel = Channel::connect(from, octets(address.ip()), address.port(), &self.settings.key)?;
        let hello = self.hello(net, id, ticket);
        channel.say(hello).map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        let until = sys::now() + HANDSHAKE_TIMEOUT;
        self.strangers.push(Stranger { channel, called: Some((id, ticket)), from: address.ip(), until });
        Ok(())
    }

    fn hello(&self, net: &Net, to: u16, ticket: Ticket) -> Hello {
        Hello {
            net: net.settings.name.clone(),
            from: net.me,
            to,
            size: net.settings.queue as u64,
            ticket,
            provider: self.provider.clone(),
            address: self.port.address().to_vec(),
        }
    }

    /// Goes on with everything that can go on; nothing here waits.
    pub fn go_on(&mut self, net: &Arc<Net>) -> Vec<News> {
        let peers = net.peers.current();
        let mut news = Vec::new();
        while self.has_room()
            && let Ok((stream, from)) = self.listener.accept()
        {
            let from = from.ip().to_canonical();
            let known =
                |peer: &Arc<crate::peers::Peer>| peer.address.is_some_and(|address| address.ip() == from);
            if net.settings.source_check && !peers.list.iter().any(known) {
                news.push(News::Failed(None, from, "no host of the table has that address".into()));
                continue;
            }
            if let Ok(channel) = Channel::accept(stream, octets(from), &self.settings.key) {
                self.strangers.push(Stranger {
                    channel,
                    called: None,
                    from,
                    until: sys::now() + HANDSHAKE_TIMEOUT,
                });
            }
        }
        for mut stranger in std::mem::take(&mut self.strangers) {
            let mut hello = None;
            let done = stranger.channel.go_on(|said| hello = Some(said));
            let id = stranger.called.map(|(id, _)| id);
            let from = stranger.from;
            match (hello, done) {
                (Some(hello), _) => {
                    let peer = hello.from;
                    if let Err(why) = self.greeted(net, &peers, stranger, hello) {
                        news.push(News::Failed(id.or(Some(peer)), from, why));
                    }
                }
                (None, Ok(())) if sys::now() < stranger.until => self.strangers.push(stranger),
                (None, Err(channel::End::WrongKey)) => {
                    news.push(News::Failed(id, from, "it has another key than this host".into()));
                }
                (None, Err(channel::End::Garbled)) => {
                    news.push(News::Failed(
                        id,
                        from,
                        "its message is malformed: is it of another version?".into(),
                    ));
                }
                // Not there, or not any more, or too slow: it will be called again.
                (None, _) => {}
            }
        }
        for coming in std::mem::take(&mut self.coming) {
            let (peer, from) =
                (coming.end.peer, coming.stream.peer_addr().map_or(self.own.ip(), |at| at.ip()));
            if let Some(why) = coming.end.over.get() {
                lock(&self.invited).remove(&coming.ticket);
                news.push(News::Failed(
                    Some(peer),
                    from.to_canonical(),
                    format!("no link by {}: {why}", self.provider),
                ));
            } else if coming.end.ready.load(Ordering::Acquire) {
                news.extend(self.linked(coming).map(News::Linked));
            } else if sys::now() < coming.until {
                self.coming.push(coming);
            } else {
                lock(&self.invited).remove(&coming.ticket);
                let why = format!("its {} is not reached from here", self.provider);
                news.push(News::Failed(Some(peer), from.to_canonical(), why));
            }
        }
        news
    }

    /// A host has sent its hello, and has the key. Everything else is its claim, and is checked.
    fn greeted(
        &mut self,
        net: &Arc<Net>,
        peers: &Snapshot,
        mut stranger: Stranger,
        hello: Hello,
    ) -> Result<(), String> {
        let Hello { from, to, size, ticket, .. } = hello;
        if hello.net != net.settings.name {
            return Err(format!("it is of another net, {}", hello.net.escape_default()));
        }
        let peer = peers.place(from).map(|place| &peers.list[place]).filter(|_| to == net.me);
        let Some(peer) = peer else {
            return Err(format!("host {from} calls host {to}: is its table the same as ours?"));
        };
        if net.settings.source_check && peer.address.map(|address| address.ip()) != Some(stranger.from) {
            return Err(format!("it says that it is host {from}, whose address is another one"));
        }
        match stranger.called {
            Some((id, _)) if id != from => return Err(format!("host {from} answers for host {id}")),
            Some((_, asked)) if asked != ticket => return Err("it answers a call that was not made".into()),
            None if from > net.me => return Err("it calls; we call it".into()),
            _ => {}
        }
        let size = usize::try_from(size).unwrap_or(0);
        if !size.is_power_of_two() || !(256 << 10..=64 << 20).contains(&size) {
            return Err("its queue has an impossible size".into());
        }
        let end = End::new(&net.keeper, from, size).map_err(|error| error.to_string())?;
        if stranger.called.is_none() {
            // Sent before anything else can be wrong: so both ends report the error.
            let answer = self.hello(net, from, ticket);
            lock(&self.invited).insert(ticket, Arc::clone(&end));
            if stranger.channel.say(answer).is_err() {
                lock(&self.invited).remove(&ticket);
                return Ok(());
            }
        }
        if hello.provider != self.provider {
            lock(&self.invited).remove(&ticket);
            return Err(format!("its fabric is {}, and ours {}", hello.provider, self.provider));
        }
        let link = match stranger.called {
            None => None,
            Some(_) => {
                let words = [&REQUEST[..], &ticket].concat();
                let owner: Arc<dyn Owner> = Arc::clone(&end) as _;
                let asked =
                    self.port.connect(&hello.address, &words, segment::bytes(net.settings.queue), owner);
                Some(asked.map_err(|error| format!("no link by {}: {error}", self.provider))?)
            }
        };
        // A host that calls again has given up its earlier attempt.
        for before in self.coming.extract_if(.., |coming| coming.end.peer == from) {
            lock(&self.invited).remove(&before.ticket);
        }
        let (stream, until) = (stranger.channel.into_stream(), sys::now() + HANDSHAKE_TIMEOUT);
        self.coming.push(Coming { end, ticket, stream, link, until });
        Ok(())
    }

    fn linked(&self, coming: Coming) -> Option<Link> {
        let Coming { end, stream, link, .. } = coming;
        let link = link.or_else(|| self.port.links().into_iter().find(|link| link.number() == end.number))?;
        let Some(shadow) = link.shadow().filter(|shadow| shadow.len() == segment::bytes(end.size)) else {
            link.close();
            return None;
        };
        let (peer, size) = (end.peer, link.mine().len() - segment::bytes(0));
        let path = RemotePath { link, end, shadow, provider: self.provider.clone() };
        Some(Link::remote(peer, OwnedFd::from(stream), path, size))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::path::{GIVE_BACK, HERE, SILENCE};
    use super::*;
    use crate::link::QUEUE;
    use crate::sys::Bell;
    use fabric::frames;
    use fabric::frames::Next;
    use fabric::{Local as _, Remote as _};
    use ofi::Owner;
    use std::net::Ipv4Addr;
    use std::time::{Duration, Instant};

    const SIZE: usize = 256 << 10;

    fn until(what: &str, mut ready: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !ready() {
            assert!(Instant::now() < end, "{what} does not come");
            std::thread::yield_now();
        }
    }

    fn end() -> Arc<End> {
        let keeper = Arc::new(Bell::new().expect("an eventfd"));
        End::new(&keeper, 2, SIZE).expect("an eventfd")
    }

    /// A host's end of a link, and the bare link of a peer that may do anything; the ports end
    /// last.
    struct Pair {
        link: Link,
        peer: Arc<ofi::Link>,
        peers_end: Arc<End>,
        _ports: [Port; 2],
        _peers_socket: TcpStream,
    }

    /// A link over loopback to a peer that has a segment of so many bytes; or the host's end, if
    /// the link is not established.
    fn link_with(len: usize) -> Result<Pair, Arc<End>> {
        let found = ofi::find(Some("tcp"), Some(Ipv4Addr::LOCALHOST.into())).expect("libfabric is there");
        let (own, peers_end) = (end(), end());
        let guest: Arc<dyn Owner> = peers_end.clone();
        let gate = move |words: &[u8]| (ticket_of(words) == Some([7; 16])).then(|| (len, guest.clone()));
        let ports = [
            Port::open(&found[0], Box::new(|_| None)).expect("it opens"),
            Port::open(&found[0], Box::new(gate)).expect("it opens"),
        ];
        let words = [&REQUEST[..], &[7; 16]].concat();
        let owner: Arc<dyn Owner> = own.clone();
        let link =
            ports[0].connect(ports[1].address(), &words, segment::bytes(SIZE), owner).expect("it is asked");
        let stands = || own.ready.load(Ordering::Acquire) && peers_end.ready.load(Ordering::Acquire);
        until("the link", || stands() || own.over.get().is_some());
        if !stands() {
            return Err(own);
        }
        let shadow = link.shadow().expect("it stands");
        let path = RemotePath { link, end: own, shadow, provider: "tcp".into() };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let socket = TcpStream::connect(listener.local_addr().expect("it has one")).expect("it listens");
        let (theirs, _) = listener.accept().expect("it has connected");
        let link = Link::remote(2, OwnedFd::from(socket), path, SIZE);
        let peer = ports[1].links().pop().expect("one was accepted");
        Ok(Pair { link, peer, peers_end, _ports: ports, _peers_socket: theirs })
    }

    fn pair() -> Pair {
        link_with(segment::bytes(SIZE)).unwrap_or_else(|end| panic!("{:?}", end.over.get()))
    }

    #[test]
    fn frames_of_all_lengths_come_in_their_order_as_they_were() {
        let pair = pair();
        let (mut producer, mut consumer) = (pair.link.producer(), frames::Consumer::new(SIZE));
        let mine = pair.peer.mine();
        for i in 0..2000usize {
            let frame: Vec<u8> = (0..i * 37 % 9000).map(|at| (at + i) as u8).collect();
            until("room", || pair.link.put(&mut producer, &frame));
            pair.link.publish(&mut producer);
            let mut next = Next::Empty;
            until("the frame", || {
                next = consumer.next(&mine, QUEUE);
                next != Next::Empty
            });
            let Next::Frame { offset, len } = next else { panic!("{next:?}") };
            let mut got = vec![0; len];
            // SAFETY: a vector of so many.
            unsafe { mine.get(offset, got.as_mut_ptr(), len) };
            assert!(got == frame, "frame {i}");
            consumer.done(&*pair.peer, crate::link::BACK, len);
        }
    }

    #[test]
    fn what_a_peer_says_that_cannot_be_breaks_its_queue_and_nothing_else() {
        for index in [63, 1 << 40, SIZE as u64 + 64, u64::MAX] {
            let pair = pair();
            let mut consumer = pair.link.consumer();
            pair.peer.put_word(QUEUE, index);
            until("the index", || consumer.ready(pair.link.mine(), QUEUE));
            assert_eq!(consumer.next(pair.link.mine(), QUEUE), Next::Broken);
        }
        // A claim to have read bytes that were never put makes no room.
        let pair = pair();
        let mut producer = pair.link.producer();
        pair.peer.put_word(crate::link::BACK, 1 << 30);
        until("the lie", || pair.link.mine().word(crate::link::BACK) != 0);
        let mut frames = 0;
        while pair.link.put(&mut producer, &[1; 1000]) {
            frames += 1;
        }
        assert_eq!(frames, SIZE / 1024);
        pair.link.publish(&mut producer);
        assert!(pair.link.remote_path().is_some_and(|path| path.why_over().is_none()));
    }

    #[test]
    fn a_peer_gets_no_more_memory_than_it_has_said() {
        let Err(end) = link_with(segment::bytes(SIZE) * 2) else { panic!("it stands") };
        assert!(end.over.get().is_some_and(|why| why.contains("malformed")), "{:?}", end.over.get());
    }

    #[test]
    fn a_sleeper_is_woken_and_the_peer_is_asked_for_a_sign_of_life() {
        let pair = pair();
        let path = pair.link.remote_path().expect("it is remote");
        fabric::trip::arm(pair.link.mine(), crate::link::TRIP, |_| crate::link::ASLEEP);
        pair.peer.stimulate(crate::link::TRIP, fabric::trip::RX);
        assert!(crate::sys::wait(&[pair.link.bell().fd()], Some(20_000))[0]);
        // It is asked, and silent: for a while that does not matter.
        assert!(path.ask(1));
        until("the question", || pair.peers_end.asked.load(Ordering::Relaxed) != 0);
        assert!(path.ask(SILENCE - 1));
        assert!(!path.ask(SILENCE + 1));
        pair.peer.call(HERE, pair.peers_end.asked.load(Ordering::Relaxed) ^ 2);
        pair.peer.call(7, 7);
        until("a wrong answer", || path.end.given.load(Ordering::Relaxed) != 0);
        assert!(!path.ask(SILENCE + 1));
        pair.peer.call(HERE, pair.peers_end.asked.swap(0, Ordering::Relaxed));
        until("the answer", || {
            path.end.given.load(Ordering::Relaxed) == path.end.wanted.load(Ordering::Relaxed)
        });
        assert!(path.ask(SILENCE + 1));
        // It returns the number that the peer asks for.
        pair.peer.call(GIVE_BACK, 99);
        until("its question", || path.end.asked.load(Ordering::Relaxed) == 99);
        assert!(path.ask(SILENCE + 2));
        until("what was given back", || pair.peers_end.given.load(Ordering::Relaxed) == 99);
        // The end of the link is the end.
        pair.peer.close();
        until("the end", || path.why_over().is_some());
    }
}
