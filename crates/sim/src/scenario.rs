//! A run: processes, their connections and what each end does, all drawn from the seed.

use std::cell::RefCell;
use std::ffi::CString;
use std::rc::Rc;

use oorandom::Rand64;
use sim::kernel::Pid;
use syscalls::{Errno, Sysno};

use crate::functions;
use crate::hosts;
use crate::image::{self, Calls, Image};
use crate::plan::{CLIENT, Plan, Turn};
use crate::program::{self, dice};
use crate::seam::Host;
use crate::server::{self, Shape};
use crate::socket::{Gone, Socket};
use crate::spaces;
use crate::world::{self, Ran, World, with};

const SERVER: Pid = 100;
const PORT: u16 = 5000;
const FROM: u16 = 6000;
const SIDE: u16 = 7000;

/// What makes a run another one than its seed says.
#[derive(Debug, Default, Clone, Copy)]
pub struct Wanted {
    /// Programs run without the library.
    pub plain: bool,
    /// The two processes are on different hosts.
    pub hosts: bool,
    /// They are in different network namespaces.
    pub spaces: bool,
    /// The rule of this number is switched off; 0 if all hold.
    pub off: u32,
    /// So many of the last steps are kept.
    pub shown: usize,
}

/// Runs a seed.
pub fn run(images: &[Image], seed: u64, wanted: Wanted) -> Result<Ran, String> {
    World::begin(seed, wanted.shown);
    images.iter().for_each(Image::reset);
    let (plain, set, mut plans, grows) = with(|world| {
        moods(world);
        if wanted.hosts {
            hosts::begin(world);
        }
        if wanted.spaces {
            spaces::begin(world);
        }
        // Half of the runs are of plain programs, which meet each other's moves most often; and all
        // of those between hosts or namespaces.
        let plain = wanted.hosts || wanted.spaces || world.once_in(2);
        let set = !plain && world.once_in(2);
        (plain, set, plans(world, set, plain), world.once_in(2))
    });
    let shape = set.then(Shape::draw);
    let handlers = if plain { [None, None] } else { handlers() };
    // A client that exits would wait for the end of this one, too.
    let fits = |plan: &Plan| !plan.forks && plan.execs.is_none() && !(plan.exits && plan.closer == 1);
    if handlers[0].is_some() && !set && plans.iter().all(fits) {
        plans.insert(0, side());
    }
    // A parent that is stopped keeps what its child has closed open.
    let forks = plans.iter().any(|plan| plan.forks) || shape.is_some_and(Shape::forks);
    if !plain {
        with(|world| stops(world, if forks { &[CLIENT] } else { &[SERVER, CLIENT] }));
    }
    // The host of all processes lives as long as the run.
    let host: &'static Host = Box::leak(Box::new(world::host(wanted.off, functions::next)));
    for (end, pid) in [SERVER, CLIENT].into_iter().enumerate() {
        let plans = plans.clone();
        let image = if wanted.plain { None } else { Some(&images[end]) };
        // SAFETY: images live as long as the simulator.
        let image: Option<&'static Image> = image.map(|image| unsafe { &*std::ptr::from_ref(image) });
        let process = Process { image, host, end, restarts: handlers[end] };
        with(|world| {
            world.process(pid, image);
            if world.spaces {
                world.kernel.unshare(pid, end as u32 + 1);
            }
            world.spawn(pid, move || {
                let env = match with(|world| (world.hosts.is_some(), world.spaces)) {
                    (true, _) => hosts::environment(end),
                    (_, true) => spaces::environment(),
                    _ => environment(grows),
                };
                let calls = start(process, env);
                let side = Side::default();
                if let Some(restarts) = process.restarts {
                    let side = side.clone();
                    program::handle(&calls, restarts, Rc::new(move || side.handle()));
                }
                match shape.filter(|_| end == 0) {
                    Some(shape) => server::serve(&calls, image, shape, &plans, move || process.end()),
                    None => serve_or_ask(&calls, process, &plans, &side),
                }
            });
        });
    }
    let result = world::run();
    // SAFETY: nobody runs any more.
    drop(unsafe { Box::from_raw(std::ptr::from_ref(host).cast_mut()) });
    result
}

/// The kernel's moods: small buffers, segments that take their time, writes cut short, and
/// resources that are not to be had.
fn moods(world: &mut World) {
    if world.once_in(3) {
        world.kernel.limits.sndbuf = 4096 << world.below(5);
        world.kernel.limits.rcvbuf = 4096 << world.below(5);
    }
    world.kernel.limits.partial = world.once_in(3);
    if world.once_in(3) {
        world.kernel.limits.delay = world.below(50_000);
    }
    let (scarce, alone) = (world.once_in(4), world.once_in(8));
    if scarce || alone {
        let mut dice = Rand64::new(world.dice.rand_u64().into());
        world.kernel.faults = Some(Box::new(move |_, number| {
            // Of the library's own calls: what they need is not there, or they are not allowed.
            let errno = match number {
                Sysno::pidfd_getfd if alone => return Some(Errno::EPERM),
                Sysno::memfd_create | Sysno::eventfd2 | Sysno::openat => Errno::EMFILE,
                Sysno::mmap => Errno::ENOMEM,
                Sysno::pread64 | Sysno::pwrite64 => Errno::EIO,
                _ => return None,
            };
            (scarce && dice.rand_range(0..10) == 0).then_some(errno)
        }));
    }
}

/// Draws when some of these processes are stopped, and for how long.
fn stops(world: &mut World, pids: &[Pid]) {
    if !world.once_in(4) {
        return;
    }
    let mut stop = || {
        let pid = pids[world.below(pids.len() as u64) as usize];
        let most = [100_000, 10_000_000, 1_000_000_000][world.below(3) as usize];
        (world.below(25_000), pid, world.below(most))
    };
    let mut stops: Vec<_> = (0..3).map(|_| stop()).collect();
    stops.sort_unstable_by(|one, other| other.cmp(one));
    world.stops = stops;
}

/// Which of the processes have a handler of signals, and whether calls begin anew after it; draws
/// when signals come.
fn handlers() -> [Option<bool>; 2] {
    let handlers = [0, 1].map(|_| (dice(3) == 0).then(|| dice(2) == 0));
    if handlers.iter().any(Option::is_some) {
        let mut steps: Vec<u64> = (0..dice(40)).map(|_| dice(40_000)).collect();
        steps.sort_unstable_by(|one, other| other.cmp(one));
        with(|world| world.signals = steps);
    }
    handlers
}

/// A connection for the server's handler.
fn side() -> Plan {
    let directions = with(|world| {
        [(SERVER, CLIENT), (CLIENT, SERVER)].map(|(writer, reader)| world.judge.add(writer, reader))
    });
    Plan {
        port: SIDE,
        from: 0,
        directions,
        turns: Vec::new(),
        both: false,
        closer: 0,
        exits: false,
        nonblocking: [true, dice(3) == 0],
        forks: false,
        execs: None,
        side: true,
        urgent: None,
        aims: false,
    }
}

/// The connections; `set`: of a server with an epoll set; `plain`: without urgent data and low
/// water marks.
fn plans(world: &mut World, set: bool, plain: bool) -> Vec<Plan> {
    let hosts = world.hosts.is_some();
    let connections = if set { 2 + world.below(3) } else { 1 + world.below(2) };
    if world.once_in(4) {
        let (step, pid) = (world.below(25_000), [SERVER, CLIENT][world.below(2) as usize]);
        world.kill_at(step, pid);
    }
    // All by the same process, as who waits for the end of one may be who is to end first.
    let exits = world.once_in(4).then(|| if set { 1 } else { world.below(2) as usize });
    (0..connections as u16)
        .map(|number| {
            // Small ones first, in most runs, until the connection may have moved to memory.
            let first = if world.once_in(4) { 0 } else { 10 + world.below(20) };
            let turns = first + 3 + world.below(if set { 8 } else { 20 });
            // Most connections are left to the kernel soon after, mostly by who has to read next.
            let left_at =
                if world.once_in(if hosts { 2 } else { 3 }) { u64::MAX } else { first + world.below(6) };
            let long_at = first + world.below(20);
            let mut begins = if world.spaces { spaces::first_turns(world) } else { Vec::new() };
            let mut turn = |number: u64| {
                let writer = if number < first { number as usize % 2 } else { world.below(2) as usize };
                // Between hosts a record may stand behind what is unread, and nobody takes it out.
                let by_reader = !hosts && !world.once_in(4);
                Turn {
                    writer,
                    whole: false,
                    len: match world.below(8) {
                        _ if number < first => 1 + world.below(100),
                        0 => 1,
                        1 => 1 + world.below(100_000),
                        2 | 3 => 1 + world.below(20_000),
                        _ => 1 + world.below(300),
                    },
                    pauses: if hosts {
                        hosts::pauses(world, number, number == long_at)
                    } else {
                        pauses(world, number == long_at)
                    },
                    exchange: if hosts {
                        world.once_in(200)
                    } else {
                        world.once_in(60) || number == long_at && world.once_in(5)
                    },
                    leaves: (number == left_at).then_some(if by_reader { 1 - writer } else { writer }),
                }
            };
            let begin = begins.len();
            begins.extend((0..turns).map(&mut turn));
            let turns = begins;
            let directions =
                [(SERVER, CLIENT), (CLIENT, SERVER)].map(|(writer, reader)| world.judge.add(writer, reader));
            let urgent = !plain && world.once_in(4);
            Plan {
                port: if set { PORT } else { PORT + number },
                from: if set { FROM + number } else { 0 },
                directions,
                both: !world.spaces && world.once_in(4),
                closer: exits.unwrap_or_else(|| world.below(2) as usize),
                exits: exits.is_some(),
                nonblocking: [world.once_in(3), world.once_in(3)],
                // A child keeps the connections of a parent that is killed.
                forks: !set && world.once_in(6) && !((hosts || exits.is_some()) && connections > 1),
                execs: (!hosts && connections == 1 && world.once_in(3)).then(|| {
                    // What it reads and does not write then may be all that its next image does.
                    let (last, from) = (turns.len() - 1, if world.once_in(4) { 0 } else { begin });
                    let within = world.below((last + 1 - from) as u64) as usize;
                    let at = if world.once_in(3) { last } else { from + within };
                    (world.below(2) as usize, at)
                }),
                turns,
                side: false,
                urgent: urgent.then(|| world.once_in(2)),
                aims: !plain && !urgent && world.once_in(4),
            }
        })
        .collect()
}

/// How long each end does something else before a turn; `long`: one of them so long that nobody
/// waits for it.
fn pauses(world: &mut World, long: bool) -> [i32; 2] {
    match world.below(2) {
        end if long => [50, 0].map(|millis| if end == 0 { millis } else { 50 - millis }),
        _ if world.once_in(3) => [1, 1],
        _ => [0, 0],
    }
}

/// The library begins, as it does when a program is loaded.
fn start(process: Process, env: Vec<CString>) -> Calls {
    let Some(image) = process.image else {
        return image::plain(functions::find).expect("a libc with all functions");
    };
    let argv = vec![CString::new("sim").expect("no NUL inside")];
    // The library keeps pointers to its environment: both stay as long as the run.
    let [argv, env] = [argv, env].map(|strings| with(|world| world.keep(strings)));
    // SAFETY: both arrays end with null and stay; the host outlives the run.
    unsafe { (image.start)(process.host, argv, env) };
    image.calls
}

/// The environment that a process is started with; `grows`: it may move to a large ring, which is
/// seldom full.
fn environment(grows: bool) -> Vec<CString> {
    let grow = if grows { "SHUNT_GROW=on" } else { "SHUNT_GROW=off" };
    [grow, "SHUNT_PROMOTE_AFTER=2", "SHUNT_PROMOTE_RATE=0", "SHUNT_BOARD=/dev/shm/board", "SHUNT_LOG=none"]
        .map(|text| CString::new(text).expect("no NUL inside"))
        .to_vec()
}

/// A process of the scenario.
#[derive(Clone, Copy)]
struct Process {
    image: Option<&'static Image>,
    host: &'static Host,
    /// Which end of the connections it has.
    end: usize,
    /// Whether it handles signals, and calls begin anew after that.
    restarts: Option<bool>,
}

impl Process {
    /// The program has come to its end.
    fn end(self) {
        // What it has left open it will not read or write any more.
        with(|world| world.judge.ended(world.pid()));
        if let Some(image) = self.image {
            // SAFETY: the process ends.
            unsafe { (image.end)() };
        }
    }
}

/// The main thread of a process.
fn serve_or_ask(calls: &Calls, process: Process, plans: &[Plan], side: &Side) {
    let end = process.end;
    let left = Rc::new(std::cell::Cell::new(plans.len()));
    let listeners: Vec<_> = match end {
        0 => plans.iter().map(|plan| program::listen(calls, plan.port)).collect(),
        _ => Vec::new(),
    };
    for (number, plan) in plans.iter().enumerate() {
        let fd = match end {
            0 => Some(program::accept(calls, listeners[number], CLIENT)),
            _ => program::connect(calls, plan.port, plan.from),
        };
        let (calls, plan, left, side) = (*calls, plan.clone(), left.clone(), side.clone());
        if end == 0
            && plan.forks
            && let Some(fd) = fd.filter(|&fd| fd >= 0)
        {
            let others = plan.clone();
            program::fork(process.image, move || talk(calls, fd, process, &others), &[plan.directions]);
            // SAFETY: the call takes a number.
            unsafe { (calls.close)(fd) };
            program::note(|| format!("close({fd}), as the child has it"));
        }
        let fd = fd.filter(|_| end != 0 || !plan.forks);
        let body = move || {
            match fd {
                Some(fd) if fd >= 0 && plan.side && end == 0 => side.begin(calls, fd, &plan),
                Some(fd) if fd >= 0 => talk(calls, fd, process, &plan),
                // The other process may have been killed before.
                _ => {}
            }
            left.set(left.get() - 1);
            if left.get() == 0 {
                side.end();
                process.end();
            }
        };
        if number + 1 == plans.len() { body() } else { program::thread(body) }
    }
}

/// The server's end of the connection that its handler of signals uses, and nobody else.
#[derive(Clone, Default)]
struct Side(Rc<RefCell<Option<Socket>>>);

impl Side {
    fn begin(&self, calls: Calls, fd: i32, plan: &Plan) {
        let mut socket = Socket::new(calls, fd, plan.directions[0], plan.directions[1]);
        socket.unblock();
        socket.within_handler = true;
        self.0.replace(Some(socket));
    }

    /// What the handler does. In another thread it may be doing that already.
    fn handle(&self) {
        let Some(mut socket) = self.0.take() else { return };
        let read = if dice(2) == 0 { socket.try_read(200) } else { Ok(0) };
        if read.is_ok() && dice(3) > 0 {
            let _ = socket.write_now(1 + dice(200));
        }
        self.0.replace(Some(socket));
    }

    fn end(&self) {
        if let Some(socket) = self.0.take() {
            socket.close();
        }
    }
}

/// One end of a connection, from its beginning to its end.
fn talk(calls: Calls, fd: i32, process: Process, plan: &Plan) {
    let end = process.end;
    let mut socket = Socket::new(calls, fd, plan.directions[end], plan.directions[1 - end]);
    if plan.nonblocking[end] {
        socket.unblock();
    }
    socket.aims = plan.aims;
    if let Some(inline) = plan.urgent {
        socket.urge(inline);
    }
    if plan.side {
        for _ in 0..dice(6) {
            program::pause(&calls, 1);
            if socket.write(1 + dice(200)).is_err() {
                break;
            }
        }
        socket.drain();
        return socket.close();
    }
    let result =
        if plan.both { at_once(&mut socket, end, plan) } else { in_turn(&mut socket, process, plan, 0) };
    finish(socket, end, plan, result);
}

fn finish(mut socket: Socket, end: usize, plan: &Plan, result: Result<(), Gone>) {
    if result.is_ok() && plan.exits && plan.closer == end {
        return socket.stay_open();
    }
    if result.is_err() || plan.closer == end {
        if with(|world| world.once_in(2)) {
            socket.shut();
            if result.is_ok() {
                socket.drain();
            }
        }
    } else {
        socket.drain();
    }
    socket.close();
}

/// The turns from a certain one on.
fn in_turn(socket: &mut Socket, process: Process, plan: &Plan, first: usize) -> Result<(), Gone> {
    let end = process.end;
    for (number, turn) in plan.turns.iter().enumerate().skip(first) {
        if turn.pauses[end] > 0 {
            program::pause(&socket.calls, turn.pauses[end]);
        }
        if turn.exchange {
            socket.exchange();
        }
        if turn.leaves == Some(end) {
            socket.leave(true);
        }
        if plan.execs == Some((end, number)) && number > first {
            go_on_in_another_image(socket, process, plan, number);
        }
        socket.whole = turn.whole;
        if turn.writer == end { socket.write(turn.len)? } else { socket.read(turn.len)? }
    }
    Ok(())
}

/// The program goes through exec(), and its next image goes on with the connection.
fn go_on_in_another_image(socket: &Socket, process: Process, plan: &Plan, number: usize) {
    let (shared, plan) = (socket.shared(), plan.clone());
    program::exec(&socket.calls, move |env| {
        let mut socket = shared;
        socket.calls = start(process, env);
        let result = in_turn(&mut socket, process, &plan, number);
        finish(socket, process.end, &plan, result);
        process.end();
    });
}

fn at_once(socket: &mut Socket, end: usize, plan: &Plan) -> Result<(), Gone> {
    let sums = plan.sums();
    let (to_write, to_read) = (sums[end], sums[1 - end]);
    let written = Rc::new(std::cell::Cell::new(None));
    let (mut writer, done) = (socket.shared(), written.clone());
    program::thread(move || {
        let result = writer.write(to_write);
        done.set(Some(result.is_ok()));
    });
    // Beside the thread that writes.
    let leaves = plan.turns.iter().any(|turn| turn.leaves == Some(end));
    let before = if leaves { with(|world| world.below(to_read)) } else { 0 };
    let read = socket.read(before).and_then(|()| {
        if leaves {
            socket.leave(false);
        }
        socket.read(to_read - before)
    });
    while written.get().is_none() {
        program::pause(&socket.calls, 1);
    }
    if written.get() == Some(true) { read } else { Err(Gone) }
}
