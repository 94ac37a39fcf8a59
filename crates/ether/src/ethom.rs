//! ETHOM: each frame goes by the message queue that its host has in the fabric ([`fabric::frames`]). The thread that reads the TAP device puts it
//! there; one thread takes what all peers send. Receivers are told of each frame at once, or of all that the interface had, together: the paper's
//! `send_flush_msg()` and `send_msg()`. While frames come neither makes a system call but the TAP device's own; a bell
//! is rung only for a receiver that sleeps.
//!
//! A queue that is full is waited for, for [`PATIENCE`] at most: TCP sends in bursts, and a receiver that has a processor soon has room. One
//! that is still full then belongs to a peer that does not run: until that one reads again, frames to it are dropped at once, so that it holds up nobody else.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fabric::frames::{Consumer, Next, Producer};
use fabric::{Local as _, sys, trip};

use crate::frame::{Drop, HEADER, Header};
use crate::link::{ASLEEP, BACK, End, Link, Offer, QUEUE, TRIP};
use crate::net::{Net, Route};
use crate::peers::Snapshot;
use crate::poll::Poller;
use crate::sys::{accept, seqpacket, wait};
use crate::table::{Flush, Table};
use crate::vnet::{self, Vnet};

/// How long a full queue is waited for, in nanoseconds.
const PATIENCE: u64 = 500_000;
/// Frames that are put before receivers are told of them, at most.
const BATCH: usize = 32;
/// Frames that are taken from one peer before the next one's turn.
const TURN: usize = 64;
/// How often hosts that are not there are looked for, in milliseconds.
const RETRY: u64 = 200;
/// How long whoever connects may take to say who it is, in nanoseconds.
const MANNERS: u64 = 1_000_000_000;
/// Connections that have not said who they are.
const STRANGERS: usize = 64;

type Job = (&'static str, Box<dyn FnOnce() + Send>);

/// What the threads of a net do.
pub fn jobs(net: &Arc<Net>, table: &Table) -> io::Result<[Job; 3]> {
    let meeting = Meeting::open(net, &table.directory)?;
    let (a, b, c) = (net.clone(), net.clone(), net.clone());
    Ok([
        ("send", Box::new(move || send(&a))),
        ("recv", Box::new(move || receive(&b))),
        ("keep", Box::new(move || meeting.keep(&c))),
    ])
}

/// The sending end of a link, as the thread that sends has it.
struct Out {
    link: Arc<Link>,
    producer: Producer,
    /// It was full for too long; how much waited in it then.
    stuck: bool,
}

impl Out {
    fn publish(&mut self) {
        self.link.publish(&mut self.producer);
    }
}

/// Frames of the interface, to the peers.
fn send(net: &Net) {
    let mut frame = vec![0; vnet::LEN + vnet::LONGEST];
    let (mut peers, mut seen) = (net.peers.current(), u64::MAX);
    let mut outs: Vec<Option<Out>> = Vec::new();
    let mut poller = Poller::new(net.settings.spin);
    // Frames that were put and that no receiver has been told of.
    let mut untold = 0;
    while !net.is_stopped() {
        let mut len = 0;
        if !poller.look(&net.polls, || {
            len = net.tap.read(&mut frame).unwrap_or(0);
            if untold > 0 && (len == 0 || untold >= BATCH) {
                outs.iter_mut().flatten().for_each(Out::publish);
                untold = 0;
            }
            len > 0
        }) {
            if net.sleep_at(&mut poller, net.tap.fd(), &net.sender) {
                // A link that is gone is let go of now, not with the next frame.
                renew(net, &mut peers, &mut seen, &mut outs);
            }
            continue;
        }
        renew(net, &mut peers, &mut seen, &mut outs);
        let frame = &frame[..len];
        let header = match frame.get(vnet::LEN..).map(Header::parse) {
            Some(Ok(header)) => header,
            _ => {
                net.counters.drop(Drop::Runt);
                continue;
            }
        };
        net.readers.show(false, &[&frame[vnet::LEN..]]);
        match net.route(&peers, &header) {
            Route::One(place) => pass(net, &peers, &mut outs, place, frame),
            Route::All => {
                for place in 0..peers.list.len() {
                    pass(net, &peers, &mut outs, place, frame);
                }
            }
            Route::Nowhere => net.counters.drop(Drop::UnknownHost),
        }
        untold += usize::from(net.settings.flush == Flush::Batched);
    }
}

/// Takes a newer snapshot, if there is one; links that stay keep their state.
#[inline(always)]
fn renew(net: &Net, peers: &mut Arc<Snapshot>, seen: &mut u64, outs: &mut Vec<Option<Out>>) {
    if !net.peers.refresh(peers, seen) {
        return;
    }
    let mut old: Vec<Out> = outs.drain(..).flatten().collect();
    outs.extend(peers.links.iter().map(|link| {
        let link = link.as_ref()?;
        if let Some(at) = old.iter().position(|out| Arc::ptr_eq(&out.link, link)) {
            return Some(old.swap_remove(at));
        }
        Some(Out { link: link.clone(), producer: link.producer(), stuck: false })
    }));
}

/// Puts a frame, with its offload header, on a peer's queue.
#[inline(always)]
fn pass(net: &Net, peers: &Snapshot, outs: &mut [Option<Out>], place: usize, frame: &[u8]) {
    let counters = &peers.list[place].counters;
    let Some(out) = &mut outs[place] else { return counters.drop(Drop::NoPeer) };
    let (mine, theirs) = (*out.link.mine(), *out.link.theirs());
    let mut put = out.producer.put(&theirs, QUEUE, &mine, BACK, &[frame]);
    if !put && !out.stuck {
        // It makes room only for what it knows of.
        out.publish();
        let start = sys::now();
        while !put && sys::now() - start < PATIENCE {
            sys::yield_now();
            put = out.producer.put(&theirs, QUEUE, &mine, BACK, &[frame]);
        }
    }
    out.stuck = !put;
    if !put {
        return counters.drop(Drop::QueueFull);
    }
    if net.settings.flush == Flush::Direct {
        out.publish();
    }
    counters.frames_out.add_mine(1);
    counters.bytes_out.add_mine((frame.len() - vnet::LEN) as u64);
}

/// The receiving end of a link, as the thread that receives has it.
struct In {
    link: Arc<Link>,
    consumer: Consumer,
    place: usize,
    /// The peer did what cannot be: it is not listened to any more.
    broken: bool,
}

impl In {
    fn ready(&self) -> bool {
        !self.broken && self.consumer.ready(self.link.mine(), QUEUE)
    }
}

/// Frames of all peers, to the interface.
fn receive(net: &Net) {
    let (mut peers, mut seen) = (net.peers.current(), u64::MAX);
    let mut ins: Vec<In> = Vec::new();
    let mut fds = Vec::new();
    let mut poller = Poller::new(net.settings.spin);
    while !net.is_stopped() {
        if net.peers.refresh(&mut peers, &mut seen) {
            let mut old = std::mem::take(&mut ins);
            for (place, link) in peers.links.iter().enumerate() {
                let Some(link) = link else { continue };
                let before =
                    old.iter().position(|end| Arc::ptr_eq(&end.link, link)).map(|at| old.swap_remove(at));
                let new = || In { link: link.clone(), consumer: link.consumer(), place, broken: false };
                ins.push(In { place, ..before.unwrap_or_else(new) });
            }
            fds = ins.iter().map(|end| end.link.bell().fd()).chain([net.receiver.fd()]).collect();
        }
        if !poller.look(&net.polls, || ins.iter().any(In::ready)) {
            for end in &ins {
                trip::arm(end.link.mine(), TRIP, |_| ASLEEP);
            }
            if !ins.iter().any(In::ready) {
                let woken = net.sleep(&mut poller, &fds);
                for (end, _) in ins.iter().zip(&woken).filter(|(_, woken)| **woken) {
                    end.link.bell().silence();
                }
                if woken.last() == Some(&true) {
                    net.receiver.silence();
                }
            }
            continue;
        }
        for end in &mut ins {
            if end.ready() {
                take(net, &peers, end);
            }
        }
    }
}

/// Takes what one peer has sent, up to [`TURN`] frames.
fn take(net: &Net, peers: &Snapshot, end: &mut In) {
    let counters = &peers.list[end.place].counters;
    let (mine, theirs) = (*end.link.mine(), *end.link.theirs());
    for _ in 0..TURN {
        match end.consumer.next(&mine, QUEUE) {
            Next::Empty => return,
            Next::Frame { offset, len } => {
                match deliver(net, peers, end, offset, len) {
                    Ok(bytes) => {
                        counters.frames_in.add_mine(1);
                        counters.bytes_in.add_mine(bytes as u64);
                    }
                    Err(reason) => counters.drop(reason),
                }
                end.consumer.done(&theirs, BACK, len);
            }
            Next::Broken => {
                eprintln!(
                    "shunt ether: {}: host {} wrote what cannot be into its queue; its link is given up",
                    net.settings.name, end.link.peer
                );
                end.broken = true;
                return end.link.give_up();
            }
        }
    }
}

/// Checks a frame that lies in memory its sender can still change, and hands it to the kernel. What is checked is copied first,
/// and it is the copy that goes on; the rest is the payload, which is nobody's business.
#[inline(always)]
fn deliver(net: &Net, peers: &Snapshot, end: &In, offset: usize, len: usize) -> Result<usize, Drop> {
    const CHECKED: usize = vnet::LEN + HEADER;
    if len < CHECKED {
        return Err(Drop::Runt);
    }
    let mine = end.link.mine();
    let mut head = [0; CHECKED];
    // SAFETY: the target is an array of that length; the source is within the queue.
    unsafe { mine.get(offset, head.as_mut_ptr(), CHECKED) };
    let (offload, header) = head.split_first_chunk::<{ vnet::LEN }>().expect("it is longer");
    let bytes = len - vnet::LEN;
    net.admit(peers, end.place, header, bytes, vnet::LONGEST)?;
    if !Vnet::parse(offload).fits(bytes, net.most()) {
        return Err(if bytes > net.most() { Drop::Oversize } else { Drop::BadOffload });
    }
    if net.readers.any() {
        let mut copy = vec![0; bytes];
        copy[..HEADER].copy_from_slice(header);
        // SAFETY: the target has that length; the source is within the queue.
        unsafe { mine.get(offset + CHECKED, copy[HEADER..].as_mut_ptr(), bytes - HEADER) };
        net.readers.show(true, &[&copy]);
    }
    let rest = mine.base().wrapping_add(offset + CHECKED);
    // SAFETY: the range lies in the queue, in a mapping that the link holds.
    if unsafe { net.tap.write_parts(&head, rest, len - CHECKED) } { Ok(bytes) } else { Err(Drop::Refused) }
}

/// Where the hosts of a net meet, as its keeper sees it.
struct Meeting {
    folder: PathBuf,
    path: PathBuf,
    listener: OwnedFd,
    /// Locked as long as we are this host.
    _lock: File,
}

/// A connection that is no link yet.
struct Stranger {
    socket: OwnedFd,
    /// What we have handed over, and to whom, if it is we who connected.
    offered: Option<(End, u16)>,
    until: u64,
}

impl Meeting {
    fn open(net: &Net, directory: &Path) -> io::Result<Meeting> {
        let folder = directory.join(&net.settings.name);
        let said = |path: &Path, error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&folder)
            .map_err(|error| said(&folder, error))?;
        let lock_path = folder.join(format!("{:02}.lock", net.me));
        let lock = File::create(&lock_path).map_err(|error| said(&lock_path, error))?;
        // SAFETY: no pointers.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let what = format!(
                "host {} of net {} runs already (it holds {})",
                net.me,
                net.settings.name,
                lock_path.display()
            );
            return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
        }
        let path = folder.join(format!("{:02}.sock", net.me));
        // Whoever had it is gone, or would hold the lock.
        let _ = fs::remove_file(&path);
        let listener = seqpacket(&path, true).map_err(|error| said(&path, error))?;
        // Who comes is told by SO_PEERCRED; the mode would keep out root, which has given up its right over other users' files.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        Ok(Meeting { folder, path, listener, _lock: lock })
    }

    /// Makes links and takes leave of those that are gone.
    fn keep(self, net: &Net) {
        let mut strangers: Vec<Stranger> = Vec::new();
        let mut next = 0;
        // Why hosts could not be called, so that each reason is told once.
        let mut told: HashMap<u16, io::ErrorKind> = HashMap::new();
        while !net.is_stopped() {
            let peers = net.peers.current();
            let now = sys::now();
            strangers.retain(|stranger| now < stranger.until);
            let linked = |id: u16| peers.place(id).is_some_and(|place| peers.links[place].is_some());
            let missing = peers.list.iter().any(|peer| peer.id > net.me && !linked(peer.id));
            if missing && now >= next {
                next = now + RETRY * 1_000_000;
                for peer in peers.list.iter().filter(|peer| peer.id > net.me && !linked(peer.id)) {
                    let asked =
                        |stranger: &Stranger| stranger.offered.as_ref().is_some_and(|(_, id)| *id == peer.id);
                    if !strangers.iter().any(asked) {
                        match self.call(net, peer.id) {
                            Ok(stranger) => strangers.extend(stranger),
                            Err(error) if told.insert(peer.id, error.kind()) != Some(error.kind()) => {
                                eprintln!(
                                    "shunt ether: {}: cannot call host {}: {error}",
                                    net.settings.name, peer.id
                                );
                            }
                            Err(_) => {}
                        }
                    }
                }
            }
            let links: Vec<&Arc<Link>> = peers.links.iter().flatten().collect();
            let mut fds = vec![net.keeper.fd(), self.listener.as_raw_fd()];
            fds.extend(strangers.iter().map(|stranger| stranger.socket.as_raw_fd()));
            fds.extend(links.iter().map(|link| link.socket()));
            let ready = wait(&fds, (missing || !strangers.is_empty()).then_some(RETRY));
            if ready[0] {
                net.keeper.silence();
            }
            let mut spoke = ready[2..].iter();
            let waiting = std::mem::take(&mut strangers);
            for stranger in waiting {
                if *spoke.next().expect("there is one for each descriptor") {
                    self.answer(net, stranger);
                } else {
                    strangers.push(stranger);
                }
            }
            // A link says nothing: if there is something to read, it is the end.
            for (link, _) in links.iter().zip(spoke).filter(|(_, ended)| **ended) {
                // Unless there is a newer one already.
                let current = net.peers.current();
                let held = current.place(link.peer).and_then(|place| current.links[place].as_ref());
                if held.is_some_and(|held| Arc::ptr_eq(held, link)) {
                    self.changed(net, link.peer, None);
                }
            }
            while ready[1] && strangers.len() < STRANGERS {
                let Ok(socket) = accept(&self.listener) else { break };
                strangers.push(Stranger { socket, offered: None, until: sys::now() + MANNERS });
            }
        }
        let _ = fs::remove_file(&self.path);
    }

    /// Connects to a host, if it is there.
    fn call(&self, net: &Net, id: u16) -> io::Result<Option<Stranger>> {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, WouldBlock};
        let absent = [BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, WouldBlock];
        let offered = seqpacket(&self.folder.join(format!("{id:02}.sock")), false).and_then(|socket| {
            let end = End::new(&net.settings)?;
            end.offer(&socket, &net.settings, net.me, id)?;
            Ok(Stranger { socket, offered: Some((end, id)), until: sys::now() + MANNERS })
        });
        match offered {
            Ok(stranger) => Ok(Some(stranger)),
            Err(error) if absent.contains(&error.kind()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes what a stranger says; then it is a peer, or nobody.
    fn answer(&self, net: &Net, stranger: Stranger) {
        let told = Offer::take(&stranger.socket, &net.settings).and_then(|offer| {
            let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
            if offer.to != net.me || net.peers.current().place(offer.from).is_none() {
                return wrong(format!(
                    "host {} calls host {}: is its table the same as ours?",
                    offer.from, offer.to
                ));
            }
            let end = match stranger.offered {
                Some((_, id)) if id != offer.from => {
                    return wrong(format!("host {} answers for host {id}", offer.from));
                }
                Some((end, _)) => end,
                None if offer.from > net.me => {
                    return wrong(format!("host {} calls; we call it", offer.from));
                }
                None => {
                    let end = End::new(&net.settings)?;
                    end.offer(&stranger.socket, &net.settings, net.me, offer.from)?;
                    end
                }
            };
            Ok(offer.join(end, stranger.socket))
        });
        match told {
            Ok(link) => self.changed(net, link.peer, Some(Arc::new(link))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => {
                eprintln!("shunt ether: {}: whoever connected is not linked: {error}", net.settings.name)
            }
        }
    }

    fn changed(&self, net: &Net, id: u16, link: Option<Arc<Link>>) {
        net.peers.set_link(id, link);
        net.sender.ring();
        net.receiver.ring();
        if let Err(error) = net.follow_carrier() {
            eprintln!("shunt ether: {}: cannot set its carrier: {error}", net.settings.interface);
        }
    }
}
