//! What the simulated programs do but with their connections: processes, threads, signals and
//! listeners; and what they tell the judge and the trace.

use std::ffi::{CString, c_int};
use std::rc::Rc;

use sim::kernel::Pid;

use crate::image::{Calls, Image};
use crate::judge::For;
use crate::signals::{self, Handler};
use crate::world::with;

pub fn errno() -> i32 {
    // SAFETY: libc gives each thread a valid address.
    unsafe { *libc::__errno_location() }
}

pub fn dice(end: u64) -> u64 {
    with(|world| world.below(end))
}

/// Notes a call of the program's.
pub fn note(text: impl FnOnce() -> String) {
    with(|world| {
        if world.trace.is_on() {
            let (now, pid, tid) = (world.kernel.now, world.pid(), world.tid());
            world.trace.note(now, pid, tid, text());
        }
    });
}

pub fn fail(why: impl FnOnce() -> String) {
    with(|world| world.judge.fail(why));
}

/// That the thread waits for something, or no more.
pub fn waits(what: Option<For>) {
    with(|world| {
        let tid = world.tid();
        world.judge.waits(tid, what);
    });
}

/// A pause of the program's.
pub fn pause(calls: &Calls, millis: c_int) {
    // SAFETY: no entries.
    unsafe { (calls.poll)(std::ptr::null_mut(), 0, millis) };
}

/// A listener at a port of the simulated host.
pub fn listen(calls: &Calls, port: u16) -> c_int {
    let address = address(0, port);
    // SAFETY: the address lives through the call and has this length.
    unsafe {
        let fd = (calls.socket)(libc::AF_INET, libc::SOCK_STREAM, 0);
        let bound = (calls.bind)(fd, (&raw const address).cast(), size_of_val(&address) as u32);
        let listens = (calls.listen)(fd, 8);
        note(|| format!("listener {fd} at {port}: {bound}, {listens}"));
        fd
    }
}

/// Takes a connection, if there is one.
pub fn accept_now(calls: &Calls, listener: c_int) -> Option<(c_int, u16)> {
    let mut from = address(0, 0);
    let mut len = size_of_val(&from) as u32;
    // SAFETY: the address lives through the call and has this length.
    let fd = unsafe { (calls.accept4)(listener, (&raw mut from).cast(), &raw mut len, libc::SOCK_NONBLOCK) };
    let port = u16::from_be(from.sin_port);
    note(|| format!("accept({listener}) = {fd}, from {port}"));
    (fd >= 0).then_some((fd, port))
}

/// Takes a connection.
pub fn accept(calls: &Calls, listener: c_int, client: Pid) -> c_int {
    let mut fds = [libc::pollfd { fd: listener, events: libc::POLLIN, revents: 0 }];
    // SAFETY: one entry is there.
    while unsafe { (calls.poll)(fds.as_mut_ptr(), 1, 10) } == 0 {
        if with(|world| world.is_gone(client)) {
            return -1;
        }
    }
    // SAFETY: no address is asked for.
    let fd = unsafe { (calls.accept4)(listener, std::ptr::null_mut(), std::ptr::null_mut(), 0) };
    note(|| format!("accept({listener}) = {fd}"));
    fd
}

/// Connects, when there is a listener; from a port of its own, if that is not 0.
pub fn connect(calls: &Calls, port: u16, from: u16) -> Option<c_int> {
    let (own, address) = (address(1, from), address(0, port));
    // The listener may be stopped for more than a second.
    for _ in 0..10_000 {
        // SAFETY: the address lives through the call and has this length.
        unsafe {
            let fd = (calls.socket)(libc::AF_INET, libc::SOCK_STREAM, 0);
            if fd < 0 {
                return None;
            }
            // Or from another host.
            if from != 0 || own.sin_addr.s_addr != address.sin_addr.s_addr {
                (calls.bind)(fd, (&raw const own).cast(), size_of_val(&own) as u32);
            }
            let result = (calls.connect)(fd, (&raw const address).cast(), size_of_val(&address) as u32);
            note(|| format!("connect({fd}, {port}) = {result}"));
            if result == 0 {
                with(|world| world.judge.callers += 1);
                return Some(fd);
            }
            (calls.close)(fd);
        }
        pause(calls, 1);
    }
    None
}

fn address(end: usize, port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: with(|world| world.addresses[end]).to_be() },
        sin_zero: [0; 8],
    }
}

/// The process that calls forks; the child has the connections of these directions.
pub fn fork(process: Option<&'static Image>, body: impl FnOnce() + 'static, connections: &[[usize; 2]]) {
    let stage = move |stage| {
        if let Some(image) = process {
            // SAFETY: libc calls it at these points.
            unsafe { (image.fork)(stage) };
        }
    };
    stage(0);
    let child = with(|world| {
        let child = world.fork(move || {
            stage(2);
            body();
            with(|world| world.judge.ended(world.pid()));
            if let Some(image) = process {
                // SAFETY: the process ends.
                unsafe { (image.end)() };
            }
        });
        for &[out, into] in connections {
            world.judge.directions[out].writer = child;
            world.judge.directions[into].reader = child;
        }
        child
    });
    stage(1);
    note(|| format!("fork() = {child}"));
}

/// exec(): `body` is what the next image does, with its environment.
pub fn exec(calls: &Calls, body: impl FnOnce(Vec<CString>) + 'static) {
    with(|world| world.next_image = Some(Box::new(body)));
    note(|| "exec()".into());
    let env = [std::ptr::null()];
    // SAFETY: strings that end, and arrays that end with null.
    unsafe { (calls.execve)(c"/bin/sim".as_ptr(), env.as_ptr(), env.as_ptr()) };
    fail(|| "exec() returns".into());
}

/// The process that calls gets a handler of signals.
pub fn handle(calls: &Calls, restarts: bool, body: Rc<dyn Fn()>) {
    extern "C" fn run(_: c_int) {
        let body = with(|world| world.handler(world.pid()).map(|handler| handler.body.clone()));
        body.expect("one was set")();
    }
    // SAFETY: zeroes are a valid sigaction, and it lives through the call.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = run as *const () as usize;
        action.sa_flags = if restarts { libc::SA_RESTART } else { 0 };
        (calls.sigaction)(signals::SIGNAL, &raw const action, std::ptr::null_mut());
    }
    note(|| format!("sigaction(), restarts: {restarts}"));
    with(|world| {
        let pid = world.pid();
        let given = world.threads[world.current].signals.given;
        // SAFETY: the library has given a handler to rt_sigaction() just now.
        let given = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(given) };
        world.handle(Handler { pid, restarts, body, given });
    });
}

/// A thread more of the process that calls.
pub fn thread(body: impl FnOnce() + 'static) {
    with(|world| {
        let pid = world.pid();
        world.spawn(pid, body);
    });
}
