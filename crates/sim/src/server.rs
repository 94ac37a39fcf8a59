//! A server as real ones are: one epoll set with a listener and several connections, whose calls do
//! not block. Two threads may share the set, and a child of fork() may go on with it.
//!
//! What the set tells is held against plain TCP: a member that is told to be ready is, one that is
//! not armed is not told of, and nobody sleeps on the set while a member has what it is there for.

use std::cell::RefCell;
use std::ffi::c_int;
use std::rc::Rc;

use crate::image::{Calls, Image};
use crate::judge::{For, Watch};
use crate::plan::{CLIENT, Plan, Turn};
use crate::program::{self, dice, fail, note, waits};
use crate::socket::{Gone, Socket};
use crate::world::{self, with};

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;
/// What the set says of its members that are no connections.
const LISTENER: u64 = 1000;
const STOP: u64 = 1001;
/// How long it sleeps while a client may be gone that has not connected yet.
const PATIENCE: c_int = 10;

/// How members are told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Level,
    Edge,
    Once,
}

/// How the server is made.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    manner: Manner,
    /// Two threads with one set.
    two: bool,
    /// After so many looks at the set it forks, and the child goes on.
    fork_after: Option<u64>,
    /// The listener is told of by edges.
    edge_listener: bool,
}

impl Shape {
    /// Drawn from the seed.
    pub fn draw() -> Shape {
        let two = dice(4) == 0;
        let manner = [Manner::Edge, Manner::Once, Manner::Level][dice(if two { 2 } else { 3 }) as usize];
        let fork_after = (!two && dice(4) == 0).then(|| dice(60));
        Shape { manner, two, fork_after, edge_listener: dice(2) == 0 }
    }

    /// Whether its child goes on for it.
    pub fn forks(self) -> bool {
        self.fork_after.is_some()
    }
}

/// A connection, and how far it is.
struct Peer {
    number: usize,
    plan: Plan,
    socket: Socket,
    turn: usize,
    /// Bytes of this turn, or of all turns, that are still to be written and read.
    left: [u64; 2],
    stage: Stage,
    /// What the set has been asked (0: it is no member), and whether it tells still.
    asked: u32,
    armed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Turns,
    /// Nothing more is written; the peer's end is awaited.
    Last,
}

/// A connection's place: empty while a thread works on it, or before and after it is there.
#[derive(Default)]
struct Place {
    peer: Option<Peer>,
    /// Told of while a thread worked on it.
    again: bool,
    came: bool,
    over: bool,
}

struct State {
    places: Vec<Place>,
    /// Connections that are still to come.
    expected: usize,
    looks: u64,
}

/// The server: its descriptors, and what its threads share.
#[derive(Clone)]
struct Server {
    calls: Calls,
    set: c_int,
    listener: c_int,
    stop: c_int,
    shape: Shape,
    plans: Rc<Vec<Plan>>,
    state: Rc<RefCell<State>>,
}

/// Serves all connections; `process` is the library's copy, for fork().
pub fn serve(
    calls: &Calls,
    process: Option<&'static Image>,
    shape: Shape,
    plans: &[Plan],
    ended: impl Fn() + Clone + 'static,
) {
    let listener = program::listen(calls, plans[0].port);
    // SAFETY: the calls take numbers.
    let (set, stop) = unsafe {
        let flags = (calls.fcntl)(listener, libc::F_GETFL, 0);
        (calls.fcntl)(listener, libc::F_SETFL, (flags | libc::O_NONBLOCK) as usize);
        // It may fail by chance (the kernel's moods), which a server would not live with.
        let mut stop = -1;
        while stop < 0 {
            stop = (calls.eventfd)(0, libc::EFD_NONBLOCK);
        }
        ((calls.epoll_create1)(libc::EPOLL_CLOEXEC), stop)
    };
    let places = plans.iter().map(|_| Place::default()).collect();
    let state = State { places, expected: plans.len(), looks: 0 };
    let state = Rc::new(RefCell::new(state));
    let server = Server { calls: *calls, set, listener, stop, shape, plans: Rc::new(plans.to_vec()), state };
    let edge = if shape.edge_listener { EDGE } else { 0 };
    server.control(libc::EPOLL_CTL_ADD, listener, IN | edge, LISTENER);
    server.control(libc::EPOLL_CTL_ADD, stop, IN, STOP);
    with(|world| world.judge.watched = vec![Watch::Caller]);
    let running = Rc::new(std::cell::Cell::new(1 + u32::from(shape.two)));
    let body = move |server: Server| {
        let forked = server.run();
        if forked {
            server.fork(process);
        }
        running.set(running.get() - 1);
        if running.get() == 0 {
            ended();
        }
    };
    if shape.two {
        let (other, body) = (server.clone(), body.clone());
        program::thread(move || body(other));
    }
    body(server);
}

impl Server {
    fn control(&self, op: c_int, fd: c_int, events: u32, data: u64) {
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: the event lives through the call.
        let result = unsafe { (self.calls.epoll_ctl)(self.set, op, fd, &raw mut event) };
        let why = program::errno();
        let op = ["", "ADD", "DEL", "MOD"][op as usize];
        note(|| format!("epoll_ctl({}, {op}, {fd}, {events:#x}, {data}) = {result}", self.set));
        if result != 0 {
            fail(|| format!("epoll_ctl({op}) fails: {why}"));
        }
    }

    /// Looks at the set and does what it says until all is done. True if it is time to fork.
    fn run(&self) -> bool {
        loop {
            let looks = {
                let mut state = self.state.borrow_mut();
                state.looks += 1;
                state.looks
            };
            if self.shape.fork_after == Some(looks) {
                return true;
            }
            if self.is_done() {
                return false;
            }
            let (count, events) = self.look();
            for event in &events[..count] {
                let (told, data) = (event.events, event.u64);
                match data {
                    STOP => {}
                    LISTENER => self.accept(),
                    number => self.told(number as usize, told),
                }
            }
        }
    }

    /// Whether all connections are over, but those that will never come.
    fn is_done(&self) -> bool {
        let none_comes = with(|world| world.is_gone(CLIENT) && world.judge.callers <= 0);
        let state = self.state.borrow();
        state.places.iter().all(|place| place.over || none_comes && !place.came)
    }

    /// epoll_wait(), mostly without an end.
    fn look(&self) -> (usize, [libc::epoll_event; 4]) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let most = 1 + dice(4) as c_int;
        let waits_for_clients =
            self.state.borrow().expected > 0 || self.shape.two && with(|world| world.is_gone(CLIENT));
        let millis = match dice(8) {
            0 => 0,
            1 => 1,
            _ if waits_for_clients => PATIENCE,
            _ => -1,
        };
        waits(Some(For::Set));
        // SAFETY: as many events as said have room, and the entry is there.
        let wait = || unsafe {
            if dice(8) == 0 {
                // As one set is a member of another, or of a poll().
                let mut fds = [libc::pollfd { fd: self.set, events: libc::POLLIN, revents: 0 }];
                let ready = (self.calls.poll)(fds.as_mut_ptr(), 1, millis);
                note(|| format!("poll(set {}, {millis}) = {ready}", self.set));
                (self.calls.epoll_wait)(self.set, events.as_mut_ptr(), most, 0)
            } else {
                (self.calls.epoll_wait)(self.set, events.as_mut_ptr(), most, millis)
            }
        };
        let (count, handled) = world::hearing(wait);
        let why = program::errno();
        waits(None);
        note(|| {
            let told: Vec<_> = events[..count.max(0) as usize]
                .iter()
                .map(|event| ({ event.u64 }, { event.events }))
                .collect();
            format!("epoll_wait({}, {most}, {millis}) = {count} {told:x?}", self.set)
        });
        if count < 0 && !(why == libc::EINTR && handled > 0) {
            fail(|| format!("epoll_wait fails: {why}"));
        }
        (count.max(0) as usize, events)
    }

    fn accept(&self) {
        let mut took = 0;
        while let Some((fd, port)) = program::accept_now(&self.calls, self.listener) {
            took += 1;
            with(|world| world.judge.callers -= 1);
            let Some(number) = self.plans.iter().position(|plan| plan.from == port) else {
                fail(|| format!("a connection from port {port}, which nobody has"));
                return;
            };
            let plan = self.plans[number].clone();
            let mut socket = Socket::new(self.calls, fd, plan.directions[0], plan.directions[1]);
            (socket.nonblocking, socket.aims) = (true, plan.aims);
            if let Some(inline) = plan.urgent {
                socket.urge(inline);
            }
            let left = if plan.both { plan.sums() } else { [0, 0] };
            let mut peer =
                Peer { number, plan, socket, turn: 0, left, stage: Stage::Turns, asked: 0, armed: false };
            if !peer.plan.both {
                let _ = self.begin_turn(&mut peer);
            }
            let mut state = self.state.borrow_mut();
            state.expected -= 1;
            state.places[number].came = true;
            drop(state);
            self.put(peer);
            if !self.shape.edge_listener && dice(3) == 0 {
                break;
            }
        }
        if took == 0 && !self.shape.two && !with(|world| world.is_gone(CLIENT)) {
            fail(|| "the listener was told to have a connection, and has none".into());
        }
        if self.state.borrow().expected == 0 {
            self.watch();
        }
    }

    // ---- one connection ----

    /// What a member is asked for.
    fn wanted(&self, peer: &Peer) -> u32 {
        let [out, into] = peer.left.map(|left| left > 0);
        match self.shape.manner {
            Manner::Edge => IN | OUT | RDHUP | EDGE,
            manner => {
                let once = if manner == Manner::Once { ONCE } else { 0 };
                let read = if into || peer.stage == Stage::Last { IN | RDHUP } else { 0 };
                once | read | if out { OUT } else { 0 }
            }
        }
    }

    fn part(&self, peer: &mut Peer) {
        self.control(libc::EPOLL_CTL_DEL, peer.socket.fd, 0, 0);
        (peer.asked, peer.armed) = (0, false);
    }

    /// Nobody works on it any more: the set tells of it again.
    fn put(&self, mut peer: Peer) {
        let (number, fd, before) = (peer.number, peer.socket.fd, peer.asked);
        let wanted = self.wanted(&peer);
        let op = match before {
            0 => Some(libc::EPOLL_CTL_ADD),
            _ if self.shape.manner == Manner::Once || wanted != before || dice(16) == 0 => {
                Some(libc::EPOLL_CTL_MOD)
            }
            _ => None,
        };
        (peer.asked, peer.armed) = (wanted, true);
        let control = || op.map_or((), |op| self.control(op, fd, wanted, number as u64));
        let place = |peer| {
            let mut state = self.state.borrow_mut();
            state.places[number].peer = Some(peer);
            std::mem::take(&mut state.places[number].again)
        };
        if self.shape.manner == Manner::Once {
            // Another thread may be told before the call has returned.
            place(peer);
            self.watch();
            control();
        } else {
            control();
            let again = place(peer);
            self.watch();
            if again {
                self.told(number, 0);
            }
        }
    }

    /// Tells the judge what the members are there for.
    fn watch(&self) {
        let state = self.state.borrow();
        let mut all = Vec::new();
        if state.expected > 0 {
            all.push(Watch::Caller);
        }
        for peer in state.places.iter().filter_map(|place| place.peer.as_ref()).filter(|peer| peer.armed) {
            if peer.left[1] > 0 || peer.stage == Stage::Last {
                all.push(Watch::Bytes(peer.socket.into));
            }
            if peer.left[0] > 0 {
                all.push(Watch::Room(peer.socket.out));
            }
        }
        with(|world| world.judge.watched = all);
    }

    /// The set has told of a connection.
    fn told(&self, number: usize, told: u32) {
        let taken = {
            let mut state = self.state.borrow_mut();
            let Some(place) = state.places.get_mut(number) else {
                fail(|| format!("told of member {number}, which there is not"));
                return;
            };
            if place.peer.is_none() {
                // Another thread has it; or had, as both were told, and has closed it.
                place.again = !place.over;
                if !self.shape.two {
                    fail(|| format!("told of connection {number}, which has left the set"));
                }
            }
            place.peer.take()
        };
        let Some(mut peer) = taken else { return };
        if !peer.armed && self.shape.manner == Manner::Once {
            fail(|| format!("told of connection {number} once more, which was to be told once"));
        }
        peer.armed = self.shape.manner != Manner::Once;
        self.watch();
        self.judge(&peer, told);
        match self.work(&mut peer, told) {
            Ok(()) => self.put(peer),
            Err(Over) => self.end(peer),
        }
    }

    /// Whether what was told is so with plain TCP.
    fn judge(&self, peer: &Peer, told: u32) {
        let asked = peer.asked | (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let number = peer.number;
        if told & !asked != 0 {
            fail(|| format!("connection {number}: told {told:#x}, asked {asked:#x}"));
        }
        let (into, out) = (peer.socket.into, peer.socket.out);
        let (ended, reset, shut, enough) = with(|world| {
            let judge = &world.judge;
            let (reset, it) = (judge.may_be_reset(into), &judge.directions[into]);
            let enough = it.begun >= it.read + it.low_water.max(1);
            (it.ended, reset, judge.directions[out].ended, enough)
        });
        if told & IN != 0 && !ended && !reset && !peer.socket.is_urgent() && !self.shape.two && !enough {
            fail(|| format!("connection {number}: told to be readable below its low water mark"));
        }
        if told & RDHUP != 0 && !ended && !reset {
            fail(|| format!("connection {number}: told of an end that was not made"));
        }
        if told & libc::EPOLLHUP as u32 != 0 && !(ended && shut) && !reset {
            fail(|| format!("connection {number}: told that it is over, and it is not"));
        }
        if told & libc::EPOLLERR as u32 != 0 && !reset {
            fail(|| format!("connection {number}: told of an error"));
        }
    }

    /// Reads and writes what can be; `fresh` is what has just been told. An error when it is over:
    /// whether the connection was so before.
    fn work(&self, peer: &mut Peer, fresh: u32) -> Result<(), Over> {
        // Of two threads the other one may have had the bytes.
        let mut sure = if self.shape.two && self.shape.manner == Manner::Edge { 0 } else { fresh };
        loop {
            let (mut stuck, mut moved) = (true, false);
            if peer.stage == Stage::Last || peer.left[1] > 0 {
                let most = if peer.stage == Stage::Last { 1 << 16 } else { peer.left[1] };
                peer.socket.aim(if peer.stage == Stage::Last { 0 } else { peer.left[1] });
                let got = peer.socket.try_read(most)?;
                if got == 0 && sure & IN != 0 && !peer.socket.is_urgent() {
                    fail(|| format!("connection {}: told to be readable, and nothing is there", peer.number));
                }
                if peer.stage == Stage::Turns {
                    peer.left[1] -= got;
                    peer.socket.lower(peer.left[1]);
                }
                (stuck, moved) = (got == 0, got > 0);
                sure &= !IN;
            }
            if peer.left[0] > 0 {
                let most = if dice(3) == 0 { 1 + dice(peer.left[0]) } else { peer.left[0] };
                let sent = peer.socket.write_now(most)?;
                // What was recalled from memory meanwhile is sent first, and may fill the kernel's
                // buffers.
                if sent == 0 && sure & OUT != 0 && peer.plan.stays() {
                    fail(|| format!("connection {}: told to be writable, and has no room", peer.number));
                }
                peer.left[0] -= sent;
                stuck &= sent == 0;
                moved |= sent > 0;
                sure &= !OUT;
            }
            if peer.left == [0, 0] && peer.stage == Stage::Turns {
                peer.turn += 1;
                self.begin_turn(peer)?;
            } else if stuck || moved && self.shape.manner != Manner::Edge && dice(3) == 0 {
                return Ok(());
            }
        }
    }

    /// The next turn, or the last stage.
    fn begin_turn(&self, peer: &mut Peer) -> Result<(), Over> {
        let turns = if peer.plan.both { 0 } else { peer.plan.turns.len() };
        if peer.turn >= turns {
            if peer.plan.closer == 0 {
                if dice(2) == 0 {
                    return Err(Over);
                }
                peer.socket.shut();
            }
            peer.stage = Stage::Last;
            return Ok(());
        }
        let Turn { writer, len, leaves, exchange, .. } = peer.plan.turns[peer.turn];
        peer.left[writer] = len;
        let leaves = leaves == Some(0);
        if peer.asked != 0 && (leaves || exchange) {
            self.part(peer);
            if leaves { peer.socket.leave(true) } else { peer.socket.exchange() }
        }
        Ok(())
    }

    /// A connection is over.
    fn end(&self, mut peer: Peer) {
        let number = peer.number;
        // Where a parent may have the connection still, close() does not end its membership.
        if peer.asked != 0 && (self.shape.fork_after.is_some() || dice(2) == 0) {
            self.part(&mut peer);
        }
        peer.socket.close();
        let all_over = {
            let mut state = self.state.borrow_mut();
            (state.places[number].over, state.places[number].again) = (true, false);
            state.places.iter().all(|place| place.over)
        };
        self.watch();
        if all_over && self.shape.two {
            let one = 1u64;
            // SAFETY: eight bytes are there.
            unsafe { (self.calls.write)(self.stop, (&raw const one).cast(), 8) };
        }
    }

    // ---- fork ----

    /// A child goes on with the set and all that is in it; the parent has nothing to do any more.
    fn fork(&self, process: Option<&'static Image>) {
        let fds: Vec<c_int> = {
            let state = self.state.borrow();
            let open = state.places.iter().filter_map(|place| place.peer.as_ref());
            open.map(|peer| peer.socket.fd).chain([self.listener, self.set, self.stop]).collect()
        };
        let directions: Vec<[usize; 2]> = self.plans.iter().map(|plan| plan.directions).collect();
        let child = self.clone();
        program::fork(
            process,
            move || {
                child.run();
            },
            &directions,
        );
        for fd in fds {
            // SAFETY: the call takes a number.
            unsafe { (self.calls.close)(fd) };
            note(|| format!("close({fd}), as the child has it"));
        }
    }
}

/// A connection has nothing more to do, or its peer is gone.
struct Over;

impl From<Gone> for Over {
    fn from(_: Gone) -> Over {
        Over
    }
}
