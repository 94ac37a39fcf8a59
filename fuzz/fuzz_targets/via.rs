//! A VIPL program and a peer that are both out of their minds: the program posts descriptors of any content, and changes them while they are
//! posted; the peer scribbles over its half of a connection's memory. The library must not panic, nor write anything but the registered
//! buffers, the descriptors' results, and what belongs to the peer; and a descriptor is done once, in its turn. The peer may be on another host, and ask for RDMA.
#![no_main]

use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use fabric::Local;
use fabric::shm::Map;
use libfuzzer_sys::fuzz_target;
use via::abi::Descriptor;
use via::arena::{Arena, Theirs};
use via::descriptor::Posted;
use via::memory::{Asker, Attributes, Regions, Rights, Table};
use via::queue::{Manner, ReceiveQueue, SendQueue};
use via::remote::{Peer, Wire};
use via::segment::{BYTES, FAR_BYTES, Segment, at};
use via::transfer::{self, Memory};

/// Eight descriptors with room for all their segments, then eight buffers of 1,000 bytes with guards between them.
#[repr(align(64))]
struct Area([u8; AREA]);
const DESCRIPTORS: usize = 8;
const STRIDE: usize = 320;
const BUFFERS: usize = DESCRIPTORS * STRIDE;
const BUFFER: usize = 1024;
const USED: usize = 1000;
const AREA: usize = BUFFERS + DESCRIPTORS * BUFFER;
const GUARD: u8 = 0xa5;

struct World {
    regions: Regions,
    area: &'static mut Area,
    handle: u32,
    /// The peer's arena. Whatever cookies it writes, and RDMA is told, may point there.
    theirs: Theirs,
}

// SAFETY: the fuzzer has one thread.
unsafe impl Sync for World {}

const NIC: *mut c_void = 0x1000 as *mut c_void;
const ASKER: Asker = Asker { nic: NIC, ptag: std::ptr::null_mut() };

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let regions = Regions::new().expect("a memfd");
    let area = Box::leak(Box::new(Area([0; AREA])));
    let rights = Rights { write: true, read: true };
    let attributes = Attributes { ptag: std::ptr::null_mut(), rights };
    let start = area.0.as_ptr().addr();
    let handle = regions.register(NIC, start, BUFFERS, attributes).expect("room for a region");
    // Each buffer is a region of its own: a length beyond it is an error.
    for index in 0..DESCRIPTORS {
        regions.register(NIC, start + BUFFERS + index * BUFFER, USED, attributes).expect("room for a region");
    }
    let arena = Box::leak(Box::new(Arena::new().expect("a memfd")));
    // SAFETY: the arena keeps it open, and is never dropped.
    let memfd = unsafe { BorrowedFd::borrow_raw(arena.memfd()) }.try_clone_to_owned().expect("a descriptor");
    let [_, bytes] = arena.place();
    let theirs = Theirs::open(memfd, [0, bytes]).expect("an arena");
    World { regions, area, handle, theirs }
});

/// The segments of both ends, between hosts.
static FAR: LazyLock<[Map; 2]> = LazyLock::new(|| {
    [(); 2].map(|()| {
        let (map, memfd) = Map::create(c"fuzz", FAR_BYTES).expect("a memfd");
        fabric::sys::close(memfd);
        map
    })
});

/// A link with a peer that answers when it likes to, and what it likes to.
struct Whim(AtomicU64);

impl Whim {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

impl Wire for Whim {
    fn mine(&self) -> Map {
        FAR[0]
    }
    fn shadow(&self) -> Map {
        FAR[1]
    }
    fn bytes(&self, offset: usize, len: usize) {
        assert!(offset + len <= FAR_BYTES);
    }
    fn word(&self, offset: usize, _value: u64) {
        assert!(offset % 8 == 0 && offset < FAR_BYTES);
    }
    fn stimulate(&self, _offset: usize, _interest: u64) {}
    fn hold(&self) {}
    fn let_go(&self) {}
    fn poll(&self) {}
    fn ask(&self) -> u64 {
        self.next()
    }
    fn answered(&self) -> u64 {
        self.next()
    }
    fn request(&self) -> u64 {
        self.next() | 1
    }
    fn replied(&self, _request: u64) -> Option<u64> {
        let next = self.next();
        (next % 2 == 0).then_some(next / 2 % 4)
    }
    fn requested(&self) -> Option<u64> {
        None
    }
    fn reply(&self, _request: u64, _what: u64) {}
    fn say(&self, _message: u32) {}
    fn heard(&self) -> Option<u32> {
        None
    }
    fn late(&self) {}
    fn close(&self, _last: Option<u32>) {}
}

fuzz_target!(|input: &[u8]| {
    let world = &*WORLD;
    let start = world.area.0.as_ptr().cast_mut();
    // SAFETY: the area is leaked, and only this thread uses it.
    let area = unsafe { std::slice::from_raw_parts_mut(start, AREA) };
    area.fill(0);
    for index in 0..DESCRIPTORS {
        area[BUFFERS + index * BUFFER + USED..][..BUFFER - USED].fill(GUARD);
    }
    let mut input = input.iter().copied();
    let mut next = || input.next();
    let choice = next().unwrap_or(0);
    let remote = choice & 2 != 0;
    let wire: Arc<dyn Wire> = Arc::new(Whim(AtomicU64::new(1)));
    let mine =
        Arc::new(if remote { Segment::remote(wire.clone()) } else { Segment::new().expect("a memfd") });
    let theirs = if remote {
        Peer::remote(wire)
    } else {
        let (theirs, memfd) = Map::create(c"fuzz", BYTES).expect("a memfd");
        fabric::sys::close(memfd);
        Peer::near(theirs)
    };
    let regions = Map::create(c"fuzz", via::memory::TABLE).map(|(map, fd)| {
        fabric::sys::close(fd);
        map
    });
    let memory = Arc::new(Memory {
        mine: mine.clone(),
        theirs,
        pid: std::process::id(),
        direct: AtomicBool::new(false),
        regions: Some(Table::of(regions.expect("a memfd")).expect("a table")),
        asker: ASKER,
        rights: Rights { write: true, read: true },
        arena: (!remote).then(|| world.theirs.clone()),
        queues: [None; 2],
    });
    let (mut send, mut receive) = (SendQueue::default(), ReceiveQueue::default());
    let (mut sent, mut received) = (VecDeque::new(), VecDeque::new());
    if choice % 2 == 0 {
        send.memory = Some(memory.clone());
        receive.connect(memory.clone());
    }
    while let Some(op) = next() {
        let mut number = || u64::from(next().unwrap_or(0));
        let which = number() as usize % DESCRIPTORS;
        let at = which * STRIDE;
        match op % 9 {
            // A sane descriptor, or nearly.
            0 => {
                let (length, handle) = (number() * 4, world.handle + 1 + which as u32);
                let buffer = start.addr() + BUFFERS + which * BUFFER;
                area[at..at + 64].fill(0);
                area[at + 12] = 1;
                area[at + 24..at + 28].copy_from_slice(&(length as u32).to_ne_bytes());
                area[at + 32..at + 40].copy_from_slice(&(buffer as u64).to_ne_bytes());
                area[at + 40..at + 44].copy_from_slice(&handle.to_ne_bytes());
                area[at + 44..at + 48].copy_from_slice(&(length as u32).to_ne_bytes());
            }
            // The program's scribbles.
            1 => {
                let offset = number() as usize % STRIDE;
                area[at + offset] = number() as u8;
            }
            2 | 3 => {
                // SAFETY: inside the area.
                let descriptor = unsafe { start.add(at) }.cast::<Descriptor>();
                let receives = op % 9 == 3;
                // SAFETY: what is registered is mapped.
                let read = unsafe {
                    Posted::read(&world.regions, ASKER, descriptor, world.handle, receives, 1 << 20)
                };
                let Ok(posted) = read else { continue };
                if receives && receive.len() < 1024 {
                    receive.post(posted);
                    received.push_back(descriptor);
                } else if !receives && send.len() < 1024 {
                    // SAFETY: as above.
                    let outcome = unsafe { send.post(&world.regions, ASKER, posted, manner(number())) };
                    if let via::queue::Outcome::Failed(_) = outcome {
                        send.end_failed(&world.regions, 0x40);
                    }
                    sent.push_back(descriptor);
                } else {
                    let mut posted = posted;
                    posted.let_go(&world.regions);
                }
            }
            // The peer's scribbles: what it has reason to write, so that something comes of it.
            4 => {
                let offset = (number() << 8 | number()) as usize * 8 % BYTES;
                let value = number() | number() << 32 | number() << 40 | number() << 53;
                mine.map().set_word(offset & !7, value);
            }
            5 => {
                let slot = 1023 - number() as usize % 4;
                let entry = via::segment::at::TRANSFERS + slot * 128;
                mine.map().set_word(entry + 16, number() << 10 | number());
                mine.map().set_word(entry + 8, number() | number() << 8 | number() << 32);
                mine.map().set_word(entry, number() | number() % 8 << 32 | number() % 4 << 40);
            }
            6 => {
                // SAFETY: as above.
                let _ = unsafe { receive.go_on(&world.regions) };
                while let Some(done) = receive.finished.pop() {
                    assert_eq!(Some(done.descriptor), received.pop_front());
                }
            }
            // What the peer asks for, which is as likely as not to be allowed.
            8 if remote => {
                let (handle, address) = (
                    u64::from(world.handle) + 1 + number() % 9,
                    (start.addr() + BUFFERS + which * BUFFER) as u64 + number(),
                );
                let length = number() << 32 | number() << (32 + number() % 24);
                mine.map().set_word(at::ASKED, address);
                mine.map().set_word(at::ASKED + 8, handle | length | number() << 63);
                let rights = Rights { write: number() % 4 != 0, read: number() % 4 != 0 };
                // SAFETY: as above.
                let _ = unsafe { transfer::serve(&memory, &world.regions, ASKER, rights) };
            }
            _ => {
                let manner = manner(number());
                // SAFETY: as above.
                let outcome = unsafe { send.go_on(&world.regions, manner) };
                if let Some(via::queue::Outcome::Failed(_)) = outcome {
                    send.end_failed(&world.regions, 0x40);
                }
                while let Some(done) = send.finished.pop() {
                    assert_eq!(Some(done.descriptor), sent.pop_front());
                }
            }
        }
    }
    // SAFETY: as above.
    unsafe { receive.flush(&world.regions) };
    send.flush(&world.regions);
    while let Some(done) = receive.finished.pop() {
        assert_eq!(Some(done.descriptor), received.pop_front());
    }
    while let Some(done) = send.finished.pop() {
        assert_eq!(Some(done.descriptor), sent.pop_front());
    }
    assert!(received.is_empty() && sent.is_empty());
    world.theirs.map().discard(0, world.theirs.map().len());
    if remote {
        FAR.iter().for_each(|map| map.discard(0, FAR_BYTES));
    }
    for index in 0..DESCRIPTORS {
        let guard = &area[BUFFERS + index * BUFFER + USED..][..BUFFER - USED];
        assert!(guard.iter().all(|&byte| byte == GUARD), "a guard was written");
    }
});

fn manner(bits: u64) -> Manner {
    Manner { patient: bits & 1 != 0, splits: bits & 2 != 0 }
}
