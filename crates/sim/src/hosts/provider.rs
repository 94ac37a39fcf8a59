//! libfabric's functions, as the library calls them (`ofi/abi.rs`), over the simulated network. All
//! objects are of one kind, and lie in an array in the order in which they were made.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use sim::kernel::Outcome;
use syscalls::Sysno;

use super::network::{Completed, From, Happened, Listener, Network, Queue, Region, Request, State, What};
use super::state::{Kind, Object, Objects};
use crate::abi::{self, *};
use crate::world::{self, World, with};

/// A function of libfabric by its name; null if there is none.
pub fn find(name: &CStr) -> *mut c_void {
    match name.to_bytes() {
        b"fi_version" => version as *mut c_void,
        b"fi_getinfo" => getinfo as *mut c_void,
        b"fi_freeinfo" => freeinfo as *mut c_void,
        b"fi_dupinfo" => dupinfo as *mut c_void,
        b"fi_fabric" => fabric as *mut c_void,
        b"fi_strerror" => strerror as *mut c_void,
        b"shunt_sim_spawn" => spawn as *mut c_void,
        b"shunt_sim_join" => join as *mut c_void,
        _ => ptr::null_mut(),
    }
}

/// The kind and number of an object of the library's.
fn of(fid: *const Fid) -> (Kind, usize) {
    // SAFETY: the library has its objects from here, and the run that is under way has made them.
    let object = unsafe { &*fid.cast::<Object>() };
    (object.kind, object.number)
}

/// Works on the network; a call takes a while.
fn on<R>(work: impl FnOnce(&mut Network, &mut Objects, u64) -> R) -> R {
    on_world(|world| {
        let now = world.kernel.now;
        let hosts = world.hosts.as_mut().expect("a run with hosts");
        work(&mut hosts.network, &mut hosts.objects, now)
    })
}

fn on_world<R>(work: impl FnOnce(&mut World) -> R) -> R {
    let (result, others) = with(|world| {
        let others = world.takes(500);
        (work(world), others)
    });
    if others {
        world::switch();
    }
    result
}

fn pid() -> u32 {
    with(|world| world.pid())
}

static FID: OpsFid = OpsFid { size: size_of::<OpsFid>(), close, bind, control };
static FABRIC: OpsFabric =
    OpsFabric { size: size_of::<OpsFabric>(), domain, passive_ep, eq_open, wait_open: 0, trywait };
static DOMAIN: OpsDomain = OpsDomain { size: size_of::<OpsDomain>(), av_open: 0, cq_open, endpoint };
static MEMORY: OpsMr = OpsMr { size: size_of::<OpsMr>(), reg };
static CONNECTIONS: OpsCm = OpsCm {
    size: size_of::<OpsCm>(),
    setname: 0,
    getname,
    getpeer: 0,
    connect,
    listen,
    accept,
    reject,
    shutdown,
};
static MESSAGES: OpsMsg =
    OpsMsg { size: size_of::<OpsMsg>(), recv, recvv: 0, recvmsg: 0, send: 0, sendv: 0, sendmsg, inject };
static WRITES: OpsRma = OpsRma {
    size: size_of::<OpsRma>(),
    read: 0,
    readv: 0,
    readmsg: 0,
    write: 0,
    writev: 0,
    writemsg,
    inject: inject_write,
};
static EVENTS: OpsEq = OpsEq { size: size_of::<OpsEq>(), read: eq_read, readerr: eq_readerr };
static COMPLETIONS: OpsCq =
    OpsCq { size: size_of::<OpsCq>(), read: cq_read, readfrom: 0, readerr: cq_readerr };

fn table<T>(of: &'static T) -> usize {
    ptr::from_ref(of) as usize
}

// ---- descriptions ----

extern "C" fn version() -> u32 {
    abi::VERSION
}

unsafe extern "C" fn strerror(error: c_int) -> *const c_char {
    match error {
        libc::ECONNRESET => c"reset".as_ptr(),
        libc::ECONNREFUSED => c"refused".as_ptr(),
        libc::ENOTCONN => c"not connected".as_ptr(),
        _ => c"an error of the simulated provider".as_ptr(),
    }
}

/// A description with all its parts, itself first.
#[repr(C)]
struct Described {
    info: Info,
    tx: TxAttr,
    rx: RxAttr,
    ep: EpAttr,
    domain: DomainAttr,
    fabric: FabricAttr,
}

fn describe(fill: impl FnOnce(&mut Described)) -> *mut Info {
    // SAFETY: zeroes are valid numbers and pointers.
    let mut all: Box<Described> = Box::new(unsafe { std::mem::zeroed() });
    fill(&mut all);
    let at = &mut *all;
    at.info.tx_attr = &raw mut at.tx;
    at.info.rx_attr = &raw mut at.rx;
    at.info.ep_attr = &raw mut at.ep;
    at.info.domain_attr = &raw mut at.domain;
    at.info.fabric_attr = &raw mut at.fabric;
    // The description is the first part.
    Box::into_raw(all).cast()
}

fn described(all: &mut Described) {
    let traits = on(|network, _, _| network.traits);
    all.ep.kind = abi::EP_MSG;
    all.ep.max_order_waw_size = if traits.ordered { usize::MAX } else { 0 };
    all.tx.msg_order = if traits.ordered { abi::ORDER_WAW | abi::ORDER_SAW | abi::ORDER_SAS } else { 0 };
    (all.tx.inject_size, all.tx.size) = (traits.inject, traits.operations);
    all.domain.mr_mode = if traits.by_address { abi::MR_VIRT_ADDR } else { 0 }
        | if traits.own_keys { abi::MR_PROV_KEY } else { 0 };
    all.domain.name = c"sim0".as_ptr().cast_mut();
    all.fabric.prov_name = c"sim".as_ptr().cast_mut();
}

unsafe extern "C" fn getinfo(
    _: u32,
    _: *const c_char,
    _: *const c_char,
    _: u64,
    _: *const Info,
    to: *mut *mut Info,
) -> c_int {
    // SAFETY: the library has a place for it.
    unsafe { *to = describe(described) };
    0
}

unsafe extern "C" fn dupinfo(of: *const Info) -> *mut Info {
    if of.is_null() {
        return describe(|_| {});
    }
    // SAFETY: the library's descriptions are from here; a request's end goes along.
    let handle = unsafe { (*of).handle };
    describe(|all| {
        described(all);
        all.info.handle = handle;
    })
}

unsafe extern "C" fn freeinfo(info: *mut Info) {
    // SAFETY: from `describe`; the library allocates the address by libc.
    unsafe {
        libc::free((*info).dest_addr);
        drop(Box::from_raw(info.cast::<Described>()));
    }
}

// ---- objects ----

/// Writes an object where the library has a place for it.
fn put<T>(to: *mut *mut T, kind: Kind, words: [usize; 4], number: usize) -> c_int {
    let object = on(|_, objects, _| objects.add(kind, &FID, words, number));
    // SAFETY: the library has a place for it.
    unsafe { *to = object.cast() };
    0
}

unsafe extern "C" fn fabric(_: *mut FabricAttr, to: *mut *mut Fabric, _: *mut c_void) -> c_int {
    put(to, Kind::Fabric, [table(&FABRIC), 0, 0, 0], 0)
}

unsafe extern "C" fn domain(_: *mut Fabric, _: *mut Info, to: *mut *mut Domain, _: *mut c_void) -> c_int {
    put(to, Kind::Domain, [table(&DOMAIN), table(&MEMORY), 0, 0], 0)
}

/// An eventfd of the process that calls, which the card can ring.
fn descriptor() -> Result<(i32, i32), c_int> {
    let made = world::call(Sysno::eventfd2, &[0, (libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) as usize]);
    let fd = i32::try_from(made).unwrap_or(-1);
    if fd < 0 {
        return Err(made as c_int);
    }
    let bell = with(|world| {
        let (tid, card) = (world.tid(), world.hosts.as_ref().map_or(0, |hosts| hosts.network.card));
        world.kernel.lend(tid, fd, card)
    });
    bell.map(|bell| (fd, bell)).ok_or(-libc::EMFILE)
}

unsafe extern "C" fn eq_open(_: *mut Fabric, _: *mut EqAttr, to: *mut *mut abi::Eq, _: *mut c_void) -> c_int {
    let (fd, bell) = match descriptor() {
        Ok(made) => made,
        Err(error) => return error,
    };
    let number = on(|network, _, _| {
        network.eqs.push(Some(Queue { items: VecDeque::new(), fd, bell }));
        network.eqs.len() - 1
    });
    put(to, Kind::Events, [table(&EVENTS), 0, 0, 0], number)
}

unsafe extern "C" fn cq_open(_: *mut Domain, _: *mut CqAttr, to: *mut *mut Cq, _: *mut c_void) -> c_int {
    let (fd, bell) = match descriptor() {
        Ok(made) => made,
        Err(error) => return error,
    };
    let number = on(|network, _, _| {
        network.cqs.push(Some(Queue { items: VecDeque::new(), fd, bell }));
        network.cqs.len() - 1
    });
    put(to, Kind::Completions, [table(&COMPLETIONS), 0, 0, 0], number)
}

unsafe extern "C" fn passive_ep(
    _: *mut Fabric,
    _: *mut Info,
    to: *mut *mut PassiveEp,
    _: *mut c_void,
) -> c_int {
    let pid = pid();
    let number = on(|network, _, _| {
        network.listeners.push(Listener { pid, eq: usize::MAX, listens: false });
        network.listeners.len() - 1
    });
    put(to, Kind::Listener, [0, table(&CONNECTIONS), 0, 0], number)
}

unsafe extern "C" fn endpoint(_: *mut Domain, info: *mut Info, to: *mut *mut Ep, _: *mut c_void) -> c_int {
    let pid = pid();
    // SAFETY: a description of the library's. A request's handle is its number and one more.
    let request = unsafe { (*info).handle } as usize;
    let number = on(|network, _, _| {
        let number = network.end(pid);
        if request > 0 {
            network.ends[number].peer = Some(network.requests[request - 1].from);
            network.requests[request - 1].answered = true;
        }
        number
    });
    put(to, Kind::End, [0, table(&CONNECTIONS), table(&MESSAGES), table(&WRITES)], number)
}

unsafe extern "C" fn reg(
    _: *mut Fid,
    at: *const c_void,
    len: usize,
    access: u64,
    _: u64,
    key: u64,
    _: u64,
    to: *mut *mut Mr,
    _: *mut c_void,
) -> c_int {
    let pid = pid();
    let (number, key) = on(|network, _, _| {
        network.made += 1;
        let key = if network.traits.own_keys { 7000 + network.made as u64 } else { key };
        let remote = access & abi::REMOTE_WRITE != 0;
        network.regions.insert(network.made, Region { pid, at: at as usize, len, key, remote });
        (network.made, key)
    });
    put(to, Kind::Memory, [number, key as usize, 0, 0], number)
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    let (kind, number) = of(fid);
    let fd = on(|network, _, now| {
        match kind {
            Kind::Events => return network.eqs[number].take().map(|queue| queue.fd),
            Kind::Completions => return network.cqs[number].take().map(|queue| queue.fd),
            Kind::Memory => drop(network.regions.remove(&number)),
            Kind::Listener => network.listeners[number].listens = false,
            Kind::End => {
                let unanswered = network.ends[number].state == State::New;
                if unanswered && let Some(asker) = network.ends[number].peer.take() {
                    refuse(network, now, asker);
                }
                network.close(number, now);
            }
            _ => {}
        }
        None
    });
    if let Some(fd) = fd {
        world::call(Sysno::close, &[fd as usize]);
    }
    0
}

unsafe extern "C" fn bind(fid: *mut Fid, to: *mut Fid, _: u64) -> c_int {
    let ((kind, number), (queue, at)) = (of(fid), of(to));
    on(|network, _, _| match (kind, queue) {
        (Kind::Listener, _) => network.listeners[number].eq = at,
        (_, Kind::Events) => network.ends[number].eq = at,
        _ => network.ends[number].cq = at,
    });
    0
}

unsafe extern "C" fn control(fid: *mut Fid, what: c_int, to: *mut c_void) -> c_int {
    let (kind, number) = of(fid);
    if what != abi::CONTROL_GETWAIT {
        return 0;
    }
    let fd = on(|network, _, _| match kind {
        Kind::Events => network.eqs[number].as_ref().map(|queue| queue.fd),
        _ => network.cqs[number].as_ref().map(|queue| queue.fd),
    });
    // SAFETY: the library has a place for a descriptor.
    unsafe { *to.cast::<c_int>() = fd.unwrap_or(-1) };
    0
}

// ---- connections ----

unsafe extern "C" fn getname(fid: *mut Fid, to: *mut c_void, len: *mut usize) -> c_int {
    let (_, number) = of(fid);
    let address = (number as u64 + 1).to_ne_bytes();
    // SAFETY: the library has room for 128 bytes, and says so.
    unsafe {
        ptr::copy_nonoverlapping(address.as_ptr(), to.cast(), address.len());
        *len = address.len();
    }
    0
}

unsafe extern "C" fn listen(listener: *mut PassiveEp) -> c_int {
    let (_, number) = of(listener.cast());
    on(|network, _, _| network.listeners[number].listens = true);
    0
}

unsafe extern "C" fn connect(end: *mut Ep, to: *const c_void, words: *const c_void, len: usize) -> c_int {
    let (_, number) = of(end.cast());
    // SAFETY: an address that `getname` has told, and so many words.
    let (address, words) = unsafe {
        (to.cast::<u64>().read_unaligned(), std::slice::from_raw_parts(words.cast::<u8>(), len).to_vec())
    };
    on(|network, _, now| {
        network.ends[number].state = State::Asking;
        let there = network.listeners.get((address as usize).wrapping_sub(1));
        let Some(eq) = there.filter(|there| there.listens).map(|there| there.eq) else {
            return refuse(network, now, number);
        };
        network.requests.push(Request { from: number, answered: false });
        let request = Some(network.requests.len());
        let what = Happened::Event { kind: abi::EVENT_CONNREQ, end: usize::MAX, request, words };
        network.happens(now, eq, what);
    });
    0
}

fn refuse(network: &mut Network, now: u64, asker: usize) {
    if network.ends[asker].state == State::Asking {
        network.ends[asker].state = State::Dead;
        let eq = network.ends[asker].eq;
        network.happens(now, eq, Happened::Error { end: asker, error: libc::ECONNREFUSED });
    }
}

unsafe extern "C" fn accept(end: *mut Ep, _: *const c_void, _: usize) -> c_int {
    let (_, number) = of(end.cast());
    on(|network, _, now| {
        match network.ends[number].peer {
            Some(asker) if network.ends[asker].state == State::Asking => network.join(now, number, asker),
            // It has gone meanwhile.
            _ => {
                network.ends[number].state = State::Asking;
                network.ends[number].peer = None;
                network.die(number, now);
            }
        }
    });
    0
}

unsafe extern "C" fn reject(_: *mut PassiveEp, handle: *mut Fid, _: *const c_void, _: usize) -> c_int {
    on(|network, _, now| {
        let asker = network.requests[handle as usize - 1].from;
        refuse(network, now, asker);
    });
    0
}

unsafe extern "C" fn shutdown(end: *mut Ep, _: u64) -> c_int {
    let (_, number) = of(end.cast());
    on(|network, _, now| network.die(number, now));
    0
}

unsafe extern "C" fn eq_read(
    eq: *mut abi::Eq,
    event: *mut u32,
    to: *mut c_void,
    room: usize,
    _: u64,
) -> isize {
    let (_, number) = of(eq.cast());
    let taken = on(|network, _, _| {
        let queue = network.eqs[number].as_mut()?;
        match queue.items.front()? {
            Happened::Error { .. } => Some(Err(-abi::EAVAIL)),
            Happened::Event { .. } => queue.items.pop_front().map(Ok),
        }
    });
    let (kind, end, request, words) = match taken {
        None => return -(libc::EAGAIN as isize),
        Some(Err(error)) => return error,
        Some(Ok(Happened::Event { kind, end, request, words })) => (kind, end, request, words),
        Some(Ok(Happened::Error { .. })) => return -(libc::EAGAIN as isize),
    };
    let info = request.map_or(ptr::null_mut(), |request| {
        describe(|all| {
            described(all);
            all.info.handle = request as *mut Fid;
        })
    });
    let entry = EqCmEntry { fid: fid_of(end), info };
    let len = words.len().min(room - size_of::<EqCmEntry>());
    // SAFETY: so much room is there.
    unsafe {
        *event = kind;
        to.cast::<EqCmEntry>().write(entry);
        ptr::copy_nonoverlapping(words.as_ptr(), to.cast::<u8>().add(size_of::<EqCmEntry>()), len);
    }
    (size_of::<EqCmEntry>() + len) as isize
}

/// The object of an end.
fn fid_of(end: usize) -> *mut Fid {
    on(|_, objects, _| {
        let found = objects.find(Kind::End, end);
        found.map_or(ptr::null_mut(), |object| &raw mut object.fid)
    })
}

unsafe extern "C" fn eq_readerr(eq: *mut abi::Eq, to: *mut EqErrEntry, _: u64) -> isize {
    let (_, number) = of(eq.cast());
    let error = on(|network, _, _| {
        let queue = network.eqs[number].as_mut()?;
        match queue.items.front()? {
            Happened::Error { end, error } => {
                let found = (*end, *error);
                queue.items.pop_front();
                Some(found)
            }
            Happened::Event { .. } => None,
        }
    });
    let Some((end, error)) = error else { return -(libc::EAGAIN as isize) };
    // SAFETY: the library has a place for an entry.
    unsafe { ((*to).fid, (*to).err) = (fid_of(end), error) };
    1
}

// ---- messages and writes ----

unsafe extern "C" fn recv(
    end: *mut Ep,
    buffer: *mut c_void,
    len: usize,
    _: *mut c_void,
    _: u64,
    context: *mut c_void,
) -> isize {
    let (_, number) = of(end.cast());
    on(|network, _, _| network.ends[number].posted.push_back((context as usize, buffer as usize, len)));
    0
}

/// So many bytes from there, at once or from memory later.
unsafe fn bytes(iov: *const libc::iovec, at_once: bool) -> From {
    // SAFETY: the caller passes the one part of a message of the library's.
    unsafe {
        let (at, len) = ((*iov).iov_base, (*iov).iov_len);
        if at_once {
            From::Copy(std::slice::from_raw_parts(at.cast::<u8>(), len).to_vec())
        } else {
            From::Memory(at as usize, len)
        }
    }
}

fn context_of(context: *mut c_void, flags: u64) -> Option<usize> {
    (flags & abi::COMPLETION != 0).then_some(context as usize)
}

unsafe extern "C" fn sendmsg(end: *mut Ep, message: *const Msg, flags: u64) -> isize {
    let (_, number) = of(end.cast());
    // SAFETY: a message of the library's, of one part.
    let (from, context) = unsafe {
        (bytes((*message).msg_iov, flags & abi::INJECT != 0), context_of((*message).context, flags))
    };
    let fence = flags & abi::FENCE != 0;
    on(|network, _, now| {
        network.operate(now, number, (What::Message(from), fence, abi::SEND | abi::MSG), context)
    })
}

unsafe extern "C" fn inject(end: *mut Ep, from: *const c_void, len: usize, _: u64) -> isize {
    let (_, number) = of(end.cast());
    let iov = libc::iovec { iov_base: from.cast_mut(), iov_len: len };
    // SAFETY: so many bytes of the library's.
    let from = unsafe { bytes(&raw const iov, true) };
    on(|network, _, now| network.operate(now, number, (What::Message(from), false, 0), None))
}

unsafe extern "C" fn writemsg(end: *mut Ep, message: *const MsgRma, flags: u64) -> isize {
    let (_, number) = of(end.cast());
    // SAFETY: a write of the library's, of one part.
    let (from, len, to, key, context) = unsafe {
        let (iov, to) = (&*(*message).msg_iov, &*(*message).rma_iov);
        (iov.iov_base as usize, iov.iov_len, to.addr, to.key, context_of((*message).context, flags))
    };
    let what = What::Write { from, to, key, left: std::iter::once(0..len).collect() };
    let fence = flags & abi::FENCE != 0;
    on(|network, _, now| network.operate(now, number, (what, fence, abi::WRITE | abi::RMA), context))
}

unsafe extern "C" fn inject_write(_: *mut Ep, _: *const c_void, _: usize, _: u64, _: u64, _: u64) -> isize {
    -(libc::ENOSYS as isize)
}

unsafe extern "C" fn cq_read(cq: *mut Cq, to: *mut c_void, most: usize) -> isize {
    let (_, number) = of(cq.cast());
    let mut entries = Vec::new();
    let error = on(|network, _, now| {
        network.poll(number, now);
        let most = if network.below(3) == 0 { 1 } else { most };
        let Some(queue) = network.cqs[number].as_mut() else { return false };
        while entries.len() < most {
            match queue.items.front() {
                Some(&Completed::Well { context, flags, len }) => {
                    queue.items.pop_front();
                    entries.push(CqEntry {
                        context: context as *mut c_void,
                        flags,
                        len,
                        buf: ptr::null_mut(),
                        data: 0,
                    });
                }
                Some(Completed::Badly { .. }) => return entries.is_empty(),
                None => return false,
            }
        }
        false
    });
    if error {
        return -abi::EAVAIL;
    }
    if entries.is_empty() {
        return -(libc::EAGAIN as isize);
    }
    // SAFETY: the library has room for `most` entries.
    unsafe { ptr::copy_nonoverlapping(entries.as_ptr(), to.cast(), entries.len()) };
    entries.len() as isize
}

unsafe extern "C" fn cq_readerr(cq: *mut Cq, to: *mut CqErrEntry, _: u64) -> isize {
    let (_, number) = of(cq.cast());
    let found = on(|network, _, _| {
        let queue = network.cqs[number].as_mut()?;
        match queue.items.front() {
            Some(&Completed::Badly { context, error }) => {
                queue.items.pop_front();
                Some((context, error))
            }
            _ => None,
        }
    });
    let Some((context, error)) = found else { return -(libc::EAGAIN as isize) };
    // SAFETY: the library has a place for an entry.
    unsafe { ((*to).context, (*to).err) = (context as *mut c_void, error) };
    1
}

unsafe extern "C" fn trywait(_: *mut Fabric, queues: *mut *mut Fid, count: c_int) -> c_int {
    // SAFETY: an array of so many.
    let queues: Vec<_> = (0..count as usize).map(|at| of(unsafe { *queues.add(at) })).collect();
    // What has rung so far has been seen: no card may ring in between.
    let empty = on_world(|world| {
        let fds = empty(world, &queues)?;
        fds.into_iter().for_each(|fd| silence(world, fd));
        Some(())
    });
    if empty.is_some() { 0 } else { -libc::EAGAIN }
}

/// The descriptors of queues, if nothing is in any of them.
fn empty(world: &mut World, queues: &[(Kind, usize)]) -> Option<Vec<i32>> {
    let now = world.kernel.now;
    let network = &world.hosts.as_ref()?.network;
    let descriptor = |&(kind, number): &(Kind, usize)| match kind {
        Kind::Events => {
            network.eqs[number].as_ref().filter(|queue| queue.items.is_empty()).map(|queue| queue.fd)
        }
        _ => network.cqs[number]
            .as_ref()
            .filter(|queue| queue.items.is_empty() && !network.waits(number, now))
            .map(|queue| queue.fd),
    };
    queues.iter().map(descriptor).collect()
}

fn silence(world: &mut World, fd: i32) {
    let mut count = 0u64;
    let at = (&raw mut count) as usize;
    let tid = world.tid();
    let outcome = world.kernel.call(tid, Sysno::read, [fd as usize, at, 8, 0, 0, 0]);
    debug_assert!(matches!(outcome, Outcome::Done(_)), "it does not block");
}

// ---- threads ----

/// A thread of the library's own.
unsafe extern "C" fn spawn(run: unsafe extern "C" fn(*mut c_void), with_what: *mut c_void) -> u32 {
    let what = with_what as usize;
    with(|world| {
        let pid = world.pid();
        // SAFETY: the library passes what its function takes.
        world.spawn_helper(pid, move || unsafe { run(what as *mut c_void) })
    })
}

/// Waits for its end.
unsafe extern "C" fn join(tid: u32) {
    while with(|world| !world.is_done(tid)) {
        world::call(Sysno::poll, &[0, 0, 1]);
    }
}
