//! ETHOM: each frame goes by the message queue that its host has in the fabric
//! ([`fabric::frames`]): in memory on one machine, in remote memory between two
//! ([`crate::remote`]). The thread that reads the TAP device puts it there; one thread takes the
//! frames of all peers. Frames are announced to receivers one by one, or all that the interface had
//! together: the paper's `send_flush_msg()` and `send_msg()`. While frames come neither thread
//! makes system calls but the TAP device's own; a bell is rung only for a receiver that sleeps.
//!
//! The sender waits for a full queue, for `PATIENCE` at most: TCP sends in bursts, and a receiver
//! that has a processor soon has room. A queue that is still full then belongs to a peer that does
//! not run. Until that peer reads again, frames to it are dropped at once, so that it delays no
//! others.

use std::io;
use std::sync::Arc;

use fabric::frames::{Consumer, Next, Producer};
use fabric::{Local as _, sys, trip};

use crate::discovery::Discovery;
use crate::frame::{Drop, HEADER, Header};
use crate::link::{ASLEEP, Link, QUEUE, TRIP};
use crate::net::{Net, Route};
use crate::peers::Snapshot;
use crate::poll::Poller;
use crate::remote::Find;
use crate::table::{Flush, Table};
use crate::vnet::{self, Vnet};

/// How long the sender waits for a full queue, in nanoseconds.
const PATIENCE: u64 = 500_000;
/// The most frames that are put before they are announced.
const BATCH: usize = 32;
/// Frames that are taken from one peer before the next one's turn.
const TURN: usize = 64;

type Job = (&'static str, Box<dyn FnOnce() + Send>);

/// The work of the threads of a net.
pub fn jobs(net: &Arc<Net>, table: &Table, find: &Arc<Find>) -> io::Result<[Job; 3]> {
    let discovery = Discovery::open(net, table, find)?;
    let (a, b, c) = (net.clone(), net.clone(), net.clone());
    Ok([
        ("send", Box::new(move || send(&a))),
        ("recv", Box::new(move || receive(&b))),
        ("keep", Box::new(move || discovery.keep(&c))),
    ])
}

/// The sending end of a link, as the thread that sends has it.
struct Out {
    link: Arc<Link>,
    producer: Producer,
    /// It was full for too long; the bytes that waited in it then.
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
    // Frames that were put and not announced.
    let mut untold = 0;
    while !net.is_stopped() {
        let mut len = 0;
        if !poller.poll(&net.polls, || {
            len = net.tap.read(&mut frame).unwrap_or(0);
            if untold > 0 && (len == 0 || untold >= BATCH) {
                outs.iter_mut().flatten().for_each(Out::publish);
                untold = 0;
            }
            len > 0
        }) {
            if net.sleep_at(&mut poller, net.tap.fd(), &net.sender) {
                // A link that is gone is dropped now, not with the next frame.
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
    let mut put = out.link.put(&mut out.producer, frame);
    if !put && !out.stuck {
        // The receiver makes room only for frames that it knows of.
        out.publish();
        let start = sys::now();
        while !put && sys::now() - start < PATIENCE {
            sys::yield_now();
            out.link.help(true);
            put = out.link.put(&mut out.producer, frame);
        }
        out.link.leave();
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
    /// The peer broke the rules: its frames are not read any more.
    broken: bool,
}

impl In {
    fn ready(&self) -> bool {
        !self.broken && self.consumer.ready(self.link.mine(), QUEUE)
    }

    /// The same, after frames that may be on their way were received. `waits`: the caller asks
    /// again and again.
    #[inline(always)]
    fn poll(&self, waits: bool) -> bool {
        self.link.help(waits);
        self.ready()
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
        let mut rounds = 0;
        if !poller.poll(&net.polls, || {
            rounds += 1;
            ins.iter().any(|end| end.poll(rounds > 1))
        }) {
            for end in &ins {
                trip::arm(end.link.mine(), TRIP, |_| ASLEEP);
            }
            let ready = ins.iter().any(|end| end.poll(false));
            for end in &ins {
                end.link.leave();
            }
            if !ready {
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

/// Takes the frames of one peer, up to [`TURN`] of them.
fn take(net: &Net, peers: &Snapshot, end: &mut In) {
    let counters = &peers.list[end.place].counters;
    let mine = *end.link.mine();
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
                end.link.done(&mut end.consumer, len);
            }
            Next::Broken => {
                eprintln!(
                    "shunt ether: {}: host {} wrote impossible values into its queue; its link is given up",
                    net.settings.name, end.link.peer
                );
                end.broken = true;
                return end.link.give_up();
            }
        }
    }
}

/// Checks a frame in memory that its sender can still change, and hands it to the kernel. The
/// checked part is copied first, and the copy goes to the kernel. The rest is payload, which nobody
/// here reads.
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
