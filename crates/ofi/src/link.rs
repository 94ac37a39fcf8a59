//! A link: a reliable-connected endpoint, the segment that the peer writes into, and the way to
//! write into the peer's.
//!
//! * **Bytes** go by messages, if they are few, or by remote writes. Writes go from the *shadow*,
//!   memory as large as the peer's segment, in which bytes lie at the offsets that they will have
//!   there. So nobody waits for a write to complete: a place in the shadow is written again only
//!   when the peer has said that it has read the bytes there, and it cannot read them before they
//!   have arrived.
//! * **Words** go by messages, together with a few bytes that were put before them. The thread that
//!   reads the completion queue at the target stores them. A remote write may bring a word in two
//!   parts (the tcp provider receives into the target's memory as bytes come), and a reader that
//!   saw half of one would believe it. Up to 4 KB of bytes go in the message of the word behind
//!   them, which saves half of the system calls with tcp.
//! * **Stimuli** of tripwires go by messages, too, after the words. The target checks whether the
//!   tripwire is armed, so nothing has to be read remotely. Messages are used and not remote
//!   completion data, as that has 32 bits with verbs, and consumes a receive buffer there all the
//!   same.
//! * **One message** holds all that is put at once. While a thread holds the link ([`Link::hold`])
//!   nothing is sent that need not be. A word that nobody waits for (`put_word_soon`: how far a
//!   ring was read) goes with the next word that somebody waits for, or when the end that put it
//!   waits itself. That saves half of the messages of a dialogue.
//!
//! Rule F1 holds: writes and messages of one endpoint become visible in their order, or are fenced
//! where the provider does not promise it.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Duration;
use std::{mem, ptr, slice};

use fabric::shm::Map;
use fabric::{Mapped as _, Remote, sys};

use crate::abi::{self, Context, Cq, CqAttr, CqEntry, CqErrEntry, Ep, Fid, Mr, Msg, MsgRma, RmaIov};
use crate::error::Error;
use crate::mutex::lock;
use crate::nic::{self, Asked, Key, Nic, POSTED};
use crate::server::Server;
use crate::wire::{self, BYTES, Batch, Heard, Item, PIECE, SHORT};
use crate::world::Instant;

/// Buffers for messages that the provider reads while they are under way.
const LONG: usize = 16;
/// The most bytes of a segment.
const MOST: usize = 1 << 32;
/// Completions that are read at once.
const BATCH: usize = 16;

/// The owner of a link, which receives its events.
pub trait Owner: Send + Sync {
    /// The owner's number for the link: [`Link::number`].
    fn number(&self) -> u64 {
        0
    }
    /// The link is established: both ends can write.
    fn ready(&self, _link: &Link) {}
    /// The peer has stimulated the tripwire at `offset`. It held `held` and is disarmed now: its
    /// sleeper is to be woken.
    fn fired(&self, _link: &Link, _offset: usize, _held: u64) {}
    /// The peer's owner has called ([`Link::call`]). All that it had put before is there.
    fn called(&self, _link: &Link, _what: u64, _value: u64) {}
    /// The link is over.
    fn over(&self, _link: &Link, _why: &str) {}
    /// The most bytes that the peer's segment may have: the shadow takes as much memory here.
    fn most(&self) -> usize {
        MOST
    }
    /// Called again and again while a thread waits to send: time to serve other links.
    fn waits(&self, _link: &Link) {}
    /// How long a thread waits to send to a peer that takes nothing, before the link is over.
    /// `None`: for ever.
    fn patience(&self) -> Option<Duration> {
        None
    }
    /// A link that a peer has asked for, and that was to be this owner's, cannot be made. The peer
    /// is refused.
    fn failed(&self, _error: &Error) {}
}

/// The terms of a link, decided before it is made.
pub(crate) struct Terms {
    /// Bytes of the own segment.
    pub len: usize,
    pub owner: Arc<dyn Owner>,
    /// The port's thread.
    pub server: Arc<Server>,
}

/// An event for an owner.
enum News {
    Ready,
    Fired(usize, u64),
    Called(u64, u64),
    Over,
}

/// Items that are not sent yet. A few bytes wait for the word behind them; items that are added
/// while a thread holds the link wait for the end of that.
struct Outgoing {
    batch: Batch,
    held: usize,
    /// Something was sent of which the port's thread does not know: see [`Link::settle`].
    sent: bool,
}

/// The right to write into the peer's segment.
#[derive(Debug, Clone, Copy)]
struct Cookie {
    base: u64,
    key: u64,
    len: usize,
}

/// A link.
pub struct Link {
    nic: Arc<Nic>,
    owner: Arc<dyn Owner>,
    endpoint: *mut Ep,
    queue: *mut Cq,
    descriptor: c_int,
    mine: Registered,
    /// As large as the peer's, for the provider to read from.
    shadow: OnceLock<Registered>,
    /// Receive buffers, and behind them the buffers of long messages that are sent.
    desk: Registered,
    cookie: OnceLock<Cookie>,
    over: OnceLock<String>,
    /// A context for each operation that may be under way; then those that are free.
    rooms: Box<[Context]>,
    free: Mutex<Vec<u32>>,
    /// Buffers of long messages that are free.
    idle: Mutex<Vec<u32>>,
    /// One thread reads the completion queue at a time.
    reading: Mutex<()>,
    /// Items that wait for company. Locked while something is sent, so everything is sent in order.
    outgoing: Mutex<Outgoing>,
    /// A word of `put_word_soon` is among them.
    owing: AtomicBool,
    /// Events for the owner, which are reported when this thread has none of our locks.
    news: Mutex<VecDeque<News>>,
    /// A thread that waits reads the completion queue.
    helped: AtomicBool,
    /// The port's thread has noticed that, and checks whether that thread has forgotten to call
    /// `leave`.
    looked_after: AtomicBool,
    /// The port's thread.
    server: Arc<Server>,
}

// SAFETY: libfabric was asked for FI_THREAD_SAFE; only the provider writes the contexts; maps are
// shared memory.
unsafe impl Send for Link {}
// SAFETY: as above.
unsafe impl Sync for Link {}

/// Memory that is registered with the provider.
struct Registered {
    map: Map,
    mr: *mut Mr,
}

impl Registered {
    const NONE: Registered = Registered { map: Map::NONE, mr: ptr::null_mut() };

    fn new(nic: &Nic, len: usize, access: u64) -> Result<Registered, Error> {
        static KEYS: AtomicU64 = AtomicU64::new(1);
        // Shared, so that a child of fork() does not make the provider read, or write, pages that
        // are no longer ours.
        let base = sys::mmap_common(len).map_err(|errno| Error::Memory(errno.into_raw()))?;
        // SAFETY: it was just mapped, for this, and with so many bytes.
        let mut memory = Registered { map: unsafe { Map::of(base, len) }, mr: ptr::null_mut() };
        let key = if nic.traits.own_keys { 0 } else { KEYS.fetch_add(1, Ordering::Relaxed) };
        // SAFETY: the domain is open; the memory stays mapped until it is closed.
        let result = unsafe {
            let domain = nic.domain;
            ((*(*domain).mr).reg)(
                &raw mut (*domain).fid,
                base.cast(),
                len,
                access,
                0,
                key,
                0,
                &mut memory.mr,
                ptr::null_mut(),
            )
        };
        nic.library.check("fi_mr_reg", result as isize)?;
        Ok(memory)
    }

    /// Its descriptor, for providers that need one.
    fn descriptor(&self) -> *mut c_void {
        // SAFETY: registered.
        unsafe { (*self.mr).mem_desc }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        nic::close(self.mr.cast());
        // SAFETY: all users of the memory keep the link.
        unsafe { self.map.unmap() };
    }
}

impl Link {
    /// A link over an endpoint that is neither connected nor accepted yet. The endpoint is closed
    /// if this fails.
    fn new(nic: &Arc<Nic>, endpoint: *mut Ep, terms: Terms) -> Result<Link, Error> {
        let Terms { len, owner, server } = terms;
        let count = nic.traits.operations.clamp(8, 256);
        let room = Context { internal: [ptr::null_mut(); 8] };
        let mut link = Link {
            nic: Arc::clone(nic),
            owner,
            endpoint,
            queue: ptr::null_mut(),
            descriptor: -1,
            mine: Registered::NONE,
            shadow: OnceLock::new(),
            desk: Registered::NONE,
            cookie: OnceLock::new(),
            over: OnceLock::new(),
            rooms: vec![room; count + LONG + POSTED].into_boxed_slice(),
            free: Mutex::new((0..count as u32).collect()),
            idle: Mutex::new((0..LONG as u32).collect()),
            reading: Mutex::default(),
            outgoing: Mutex::new(Outgoing { batch: Batch::default(), held: 0, sent: false }),
            owing: AtomicBool::new(false),
            news: Mutex::default(),
            helped: AtomicBool::new(false),
            looked_after: AtomicBool::new(false),
            server,
        };
        let library = nic.library;
        let wrong = |what, result: c_int| library.check(what, result as isize).map(drop);
        link.mine = Registered::new(nic, len, abi::REMOTE_WRITE)?;
        link.desk = Registered::new(nic, (POSTED + LONG) * BYTES, abi::SEND | abi::RECV)?;
        let mut attr = CqAttr {
            size: count + LONG + POSTED + 1,
            flags: 0,
            format: abi::CQ_FORMAT_DATA,
            wait_obj: abi::WAIT_FD,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: ptr::null_mut(),
        };
        // SAFETY: domain and endpoint are open; the queue is written where it is to be, and closed
        // by Drop, also after an error here.
        unsafe {
            let ops = (*nic.domain).ops;
            wrong("fi_cq_open", ((*ops).cq_open)(nic.domain, &mut attr, &mut link.queue, ptr::null_mut()))?;
            link.descriptor = nic::descriptor(library, link.queue.cast())?;
            let fid: *mut Fid = link.endpoint.cast();
            nic.bind(fid)?;
            wrong("fi_ep_bind", ((*(*fid).ops).bind)(fid, link.queue.cast(), abi::SEND | abi::RECV))?;
            wrong("fi_enable", ((*(*fid).ops).control)(fid, abi::CONTROL_ENABLE, ptr::null_mut()))?;
        }
        for place in 0..POSTED {
            link.post(place)?;
        }
        Ok(link)
    }

    /// Asks the port at `address` for a link, with words for its [`crate::Gate`].
    pub(crate) fn connect(nic: &Arc<Nic>, address: &[u8], words: &[u8], terms: Terms) -> Result<Link, Error> {
        if address.is_empty() || words.len() > nic::WORDS {
            return Err(Error::Address);
        }
        let info = nic.description(address)?;
        let link = Link::new(nic, nic.endpoint(&info)?, terms)?;
        // SAFETY: the address is where `description` has put it, with room for what it is; the
        // endpoint is enabled.
        let result = unsafe {
            let cm = (*link.endpoint).cm;
            ((*cm).connect)(link.endpoint, (*info.first()).dest_addr, words.as_ptr().cast(), words.len())
        };
        nic.library.check("fi_connect", result as isize)?;
        Ok(link)
    }

    /// Accepts a request, or refuses it if that fails.
    pub(crate) fn accept(nic: &Arc<Nic>, asked: Asked, terms: Terms) -> Result<Link, Error> {
        let link = Link::new(nic, asked.endpoint()?, terms)?;
        // SAFETY: the endpoint is enabled, and made of the request.
        let result = unsafe { ((*(*link.endpoint).cm).accept)(link.endpoint, ptr::null(), 0) };
        nic.library.check("fi_accept", result as isize)?;
        Ok(link)
    }

    /// Its key in events.
    pub(crate) fn key(&self) -> Key {
        Key::of(self.endpoint.cast())
    }

    /// The connection is established: sends the hello.
    pub(crate) fn connected(&self) {
        // SAFETY: registered.
        let key = unsafe { (*self.mine.mr).key };
        let base = if self.nic.traits.by_address { self.mine.map.base() as u64 } else { 0 };
        self.tell(&Item::Hello { base, key, len: self.mine.map.len() as u64 });
    }

    /// The owner's number for it.
    pub fn number(&self) -> u64 {
        self.owner.number()
    }

    /// The own segment.
    pub fn mine(&self) -> Map {
        self.mine.map
    }

    /// Memory as large as the peer's segment, once the link is ready: for [`Link::put_shadowed`].
    /// It stays mapped as long as the link.
    pub fn shadow(&self) -> Option<Map> {
        self.cookie.get()?;
        self.shadow.get().map(|shadow| shadow.map)
    }

    /// As `put`, of bytes that were written into the shadow, at the same offset. They must stay
    /// there until the peer has said that it has read them.
    pub fn put_shadowed(&self, offset: usize, len: usize) {
        let (Some(cookie), Some(shadow)) = (self.cookie.get(), self.shadow.get()) else { return };
        assert!(offset.checked_add(len).is_some_and(|end| end <= cookie.len));
        // SAFETY: inside the shadow.
        self.put_piece(offset, unsafe { shadow.map.base().add(offset) }, len, |link| {
            link.write_shadow(cookie, shadow, offset, len);
        });
    }

    /// Calls the peer's owner ([`Owner::called`]), after all that was put before is there.
    pub fn call(&self, what: u64, value: u64) {
        self.tell(&Item::Call { what, value });
    }

    /// Bytes of the peer's segment, once the link is ready.
    pub fn room(&self) -> Option<usize> {
        self.cookie.get().map(|cookie| cookie.len)
    }

    /// Why it is over, if it is.
    pub fn why_over(&self) -> Option<&str> {
        self.over.get().map(String::as_str)
    }

    /// Notes that it is over.
    pub(crate) fn end(&self, why: String) {
        self.note_end(why);
        self.tell_news();
    }

    fn note_end(&self, why: String) {
        let mut first = false;
        self.over.get_or_init(|| {
            first = true;
            why
        });
        if first {
            lock(&self.news).push_back(News::Over);
        }
    }

    /// Ends it. The provider tells the peer.
    pub fn close(&self) {
        // SAFETY: the endpoint is open.
        unsafe { ((*(*self.endpoint).cm).shutdown)(self.endpoint, 0) };
        self.end("this end has closed it".into());
        // The port's thread drops it.
        self.server.ring();
    }

    pub(crate) fn descriptor(&self) -> c_int {
        self.descriptor
    }

    pub(crate) fn queue(&self) -> *mut Fid {
        self.queue.cast()
    }

    /// Posts the receive buffer with this number.
    fn post(&self, place: usize) -> Result<(), Error> {
        let room = self.rooms.len() - POSTED + place;
        // SAFETY: buffer and room are the endpoint's until the message has come; the endpoint is
        // enabled.
        let result = unsafe {
            let at = self.desk.map.base().add(place * BYTES);
            let context = (&raw const self.rooms[room]).cast_mut().cast();
            ((*(*self.endpoint).msg).recv)(
                self.endpoint,
                at.cast(),
                BYTES,
                self.desk.descriptor(),
                u64::MAX,
                context,
            )
        };
        self.nic.library.check("fi_recv", result).map(drop)
    }

    /// The number of a completion's context.
    fn place_of(&self, context: *mut c_void) -> Option<usize> {
        let offset = (context as usize).checked_sub(self.rooms.as_ptr() as usize)?;
        let place = offset / size_of::<Context>();
        (place < self.rooms.len()).then_some(place)
    }

    /// Carries out an operation, again and again while there is no room for it; not if the link is
    /// over. Events meanwhile are reported later.
    fn operate(&self, what: &'static str, mut operation: impl FnMut() -> isize) {
        let mut since = None;
        while self.over.get().is_none() {
            match operation() {
                result if result == -(libc::EAGAIN as isize) => {
                    if self.read().unwrap_or(0) == 0 {
                        self.owner.waits(self);
                        fabric::sync::spin_hint();
                    }
                    if let Some(patience) = self.owner.patience()
                        && since.get_or_insert_with(Instant::now).elapsed() > patience
                    {
                        self.note_end("the peer takes nothing".into());
                    }
                }
                result => {
                    if let Err(error) = self.nic.library.check(what, result) {
                        self.note_end(error.to_string());
                    }
                    return;
                }
            }
        }
    }

    /// Holds the link: while the result lives, items wait, and are sent together afterwards, in
    /// order. For a moment in which several items are put, and nobody waits for one of them: items
    /// of other threads wait, too.
    pub fn hold(&self) -> Held<'_> {
        self.take_hold();
        Held(self)
    }

    /// As [`Link::hold`], for callers that cannot keep its result: [`Link::let_go`] must follow.
    pub fn take_hold(&self) {
        lock(&self.outgoing).held += 1;
    }

    /// Undoes [`Link::take_hold`].
    pub fn let_go(&self) {
        let mut outgoing = lock(&self.outgoing);
        outgoing.held -= 1;
        self.send_unless_held(&mut outgoing);
        self.release(outgoing);
    }

    /// Sends an item, with all that waits for company.
    fn tell(&self, item: &Item) {
        let mut outgoing = lock(&self.outgoing);
        self.add(&mut outgoing, item);
        self.send_unless_held(&mut outgoing);
        self.release(outgoing);
    }

    /// Adds an item. If there is no room, the others are sent first.
    fn add(&self, outgoing: &mut Outgoing, item: &Item) {
        self.add_by(outgoing, |batch| batch.add(item));
    }

    fn add_by(&self, outgoing: &mut Outgoing, add: impl Fn(&mut Batch) -> bool) {
        if !add(&mut outgoing.batch) {
            self.send(outgoing);
            let fits = add(&mut outgoing.batch);
            debug_assert!(fits, "any item fits in an empty message");
        }
    }

    fn send_unless_held(&self, outgoing: &mut Outgoing) {
        if outgoing.held == 0 {
            self.send(outgoing);
        }
    }

    fn send(&self, outgoing: &mut Outgoing) {
        if !outgoing.batch.is_empty() {
            self.owing.store(false, Ordering::Relaxed);
            match outgoing.batch.bytes() {
                short if short.len() <= SHORT => self.inject(short),
                long => self.send_long(long),
            }
            outgoing.batch.clear();
            outgoing.sent = true;
        }
    }

    /// Unlocks, sees to what was sent meanwhile, and reports events.
    fn release(&self, mut outgoing: MutexGuard<'_, Outgoing>) {
        let sent = mem::take(&mut outgoing.sent);
        drop(outgoing);
        if sent {
            self.settle();
        }
        self.tell_news();
    }

    /// Sends words of `put_word_soon` that have found no company; whether there were any.
    fn pay(&self) -> bool {
        // SeqCst: this end's `put_word_soon` sets `owing` and then reads `helped`; `leave` clears
        // `helped` and then comes here. One of the two sees the other's store.
        self.owing.load(Ordering::SeqCst) && {
            let mut outgoing = lock(&self.outgoing);
            self.send_unless_held(&mut outgoing);
            mem::take(&mut outgoing.sent)
        }
    }

    fn inject(&self, bytes: &[u8]) {
        if self.nic.traits.fenced {
            let iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let message = Msg {
                msg_iov: &iov,
                desc: ptr::null(),
                iov_count: 1,
                addr: u64::MAX,
                context: ptr::null_mut(),
                data: 0,
            };
            return self.operate("fi_sendmsg", || {
                // SAFETY: as below.
                unsafe {
                    ((*(*self.endpoint).msg).sendmsg)(self.endpoint, &message, abi::INJECT | abi::FENCE)
                }
            });
        }
        self.operate("fi_inject", || {
            // SAFETY: the endpoint is enabled; the provider has copied the bytes when this returns
            // (`nic::find` sees to it that so many can be).
            unsafe {
                ((*(*self.endpoint).msg).inject)(self.endpoint, bytes.as_ptr().cast(), bytes.len(), u64::MAX)
            }
        });
    }

    /// Sends a message from a buffer that stays the provider's until the message is complete.
    fn send_long(&self, bytes: &[u8]) {
        let mut place = None;
        self.operate("fi_sendmsg", || {
            if place.is_none() {
                place = lock(&self.idle).pop();
            }
            let Some(place) = place else { return -(libc::EAGAIN as isize) };
            let offset = (POSTED + place as usize) * BYTES;
            let room = self.rooms.len() - POSTED - LONG + place as usize;
            // SAFETY: the buffer is inside the desk, and nobody's until this message is complete.
            unsafe { self.desk.map.copy_in(offset, bytes.as_ptr(), bytes.len()) };
            let iov = libc::iovec {
                // SAFETY: inside the desk.
                iov_base: unsafe { self.desk.map.base().add(offset) }.cast(),
                iov_len: bytes.len(),
            };
            let desc = self.desk.descriptor();
            let message = Msg {
                msg_iov: &iov,
                desc: &desc,
                iov_count: 1,
                addr: u64::MAX,
                context: (&raw const self.rooms[room]).cast_mut().cast(),
                data: 0,
            };
            let fence = if self.nic.traits.fenced { abi::FENCE } else { 0 };
            // SAFETY: the endpoint is enabled; what the message points to lives until the call
            // returns, and buffer and room until it is complete.
            unsafe { ((*(*self.endpoint).msg).sendmsg)(self.endpoint, &message, abi::COMPLETION | fence) }
        });
    }

    /// Handles what has come; returns how much that was. A thread that waits for the peer calls
    /// this again and again, and [`Link::leave`] when it goes to sleep, or on. With some providers
    /// nothing arrives otherwise, and the port's thread keeps away meanwhile.
    pub fn help(&self) -> usize {
        if !self.helped.load(Ordering::Relaxed) {
            self.helped.store(true, Ordering::Release);
        }
        self.pay();
        let did = self.read().unwrap_or(0);
        self.tell_news();
        did
    }

    /// The thread that has called `help` stops waiting.
    pub fn leave(&self) {
        // SeqCst: see `pay`.
        if self.helped.swap(false, Ordering::SeqCst) {
            self.pay();
            self.server.ring();
        }
    }

    /// As `is_helped`, for the port's thread. From now on it watches the thread that helps or, if
    /// none does, sleeps until its bell rings.
    pub(crate) fn look_after(&self) -> bool {
        // SeqCst: see `put_word_soon`.
        let helped = self.helped.load(Ordering::SeqCst);
        self.looked_after.store(helped, Ordering::SeqCst);
        helped
    }

    /// Whether a thread helps.
    pub(crate) fn is_helped(&self) -> bool {
        self.helped.load(Ordering::Acquire)
    }

    /// As [`Link::help`], for a caller that polls once and does not wait: the port's thread need
    /// not keep away.
    pub fn progress(&self) -> usize {
        let paid = self.pay();
        let did = self.read().unwrap_or(0);
        if paid || did > 0 {
            self.settle();
        }
        self.tell_news();
        did
    }

    /// Sees to what this thread has sent or begun to read, if it is not the port's. The tcp
    /// provider wakes a thread that sleeps for what is still to be done (a message that it keeps
    /// because the kernel had no room for it, one that it took from the kernel together with
    /// another) only if somebody has called fi_cq_read() or fi_trywait() since. A thread that
    /// helps does, and `leave` wakes the port's thread.
    fn settle(&self) {
        if self.server.is_here() || self.is_helped() {
            return;
        }
        for _ in 0..4 {
            match self.read() {
                Some(0) => return,
                Some(_) => {}
                None => break,
            }
        }
        self.server.ring();
    }

    /// Reports events to the owner; not under a lock, as the owner may use the link.
    fn tell_news(&self) {
        loop {
            let Some(news) = lock(&self.news).pop_front() else { return };
            match news {
                News::Ready => self.owner.ready(self),
                News::Fired(offset, held) => self.owner.fired(self, offset, held),
                News::Called(what, value) => self.owner.called(self, what, value),
                News::Over => self.owner.over(self, self.why_over().unwrap_or_default()),
            }
        }
    }

    /// Handles what has come, once; returns how much that was. `None`: another thread does.
    fn read(&self) -> Option<usize> {
        let _one = match self.reading.try_lock() {
            Ok(one) => one,
            Err(TryLockError::Poisoned(one)) => one.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let none = CqEntry { context: ptr::null_mut(), flags: 0, len: 0, buf: ptr::null_mut(), data: 0 };
        let mut entries = [none; BATCH];
        // SAFETY: an open queue of this format, and room for so many entries.
        let got = unsafe { ((*(*self.queue).ops).read)(self.queue, entries.as_mut_ptr().cast(), BATCH) };
        if got < 0 {
            if got != -(libc::EAGAIN as isize) {
                self.failed(got);
            }
            return Some(0);
        }
        let got = got as usize;
        for entry in &entries[..got] {
            let Some(room) = self.place_of(entry.context) else { continue };
            let writes = self.rooms.len() - POSTED - LONG;
            match room.checked_sub(writes + LONG) {
                None if room < writes => lock(&self.free).push(room as u32),
                None => lock(&self.idle).push((room - writes) as u32),
                Some(place) => {
                    if entry.flags & abi::RECV != 0 {
                        // SAFETY: inside the desk; the buffer was posted, has come back, and is
                        // nobody's until it is posted again.
                        self.heard(unsafe {
                            let at = self.desk.map.base().add(place * BYTES);
                            slice::from_raw_parts(at, entry.len.min(BYTES))
                        });
                    }
                    if let Err(error) = self.post(place) {
                        self.note_end(error.to_string());
                    }
                }
            }
        }
        Some(got)
    }

    /// An operation has failed: on a reliable-connected endpoint that means that the link is over.
    fn failed(&self, result: isize) {
        if result != -abi::EAVAIL {
            return self.note_end(self.nic.library.text(-result as c_int));
        }
        // SAFETY: all zeroes is a valid entry.
        let mut entry: CqErrEntry = unsafe { std::mem::zeroed() };
        // SAFETY: an open queue.
        let got = unsafe { ((*(*self.queue).ops).readerr)(self.queue, &mut entry, 0) };
        if got > 0 {
            self.note_end(self.nic.library.text(entry.err));
        }
    }

    /// Carries out a message of the peer. A malformed one ends the link.
    fn heard(&self, bytes: &[u8]) {
        let wrong = || self.note_end("the peer has sent a malformed message".into());
        wire::hear(&self.mine.map, bytes, |heard| match heard {
            Heard::Fired(offset, held) => lock(&self.news).push_back(News::Fired(offset, held)),
            Heard::Call { what, value } => lock(&self.news).push_back(News::Called(what, value)),
            Heard::Hello { base, key, len } => {
                if self.greeted(base, key, len).is_none() {
                    wrong();
                }
            }
            Heard::Wrong => wrong(),
        });
    }

    fn greeted(&self, base: u64, key: u64, len: u64) -> Option<()> {
        let len = usize::try_from(len).ok().filter(|&len| len <= self.owner.most().min(MOST))?;
        match Registered::new(&self.nic, len, abi::WRITE) {
            Ok(shadow) => self.shadow.set(shadow).ok()?,
            Err(error) => {
                self.note_end(error.to_string());
                return Some(());
            }
        }
        self.cookie.set(Cookie { base, key, len }).ok()?;
        lock(&self.news).push_back(News::Ready);
        Some(())
    }

    /// A few bytes wait for the word behind them; more are sent by `write`.
    fn put_piece(&self, offset: usize, from: *const u8, len: usize, write: impl FnOnce(&Link)) {
        if len == 0 {
            return;
        }
        let mut outgoing = lock(&self.outgoing);
        if len <= PIECE {
            // SAFETY: the callers vouch for `from`.
            self.add_by(&mut outgoing, |batch| unsafe { batch.add_put(offset as u64, from, len) });
        } else {
            self.send(&mut outgoing);
            write(self);
            outgoing.sent = true;
        }
        self.release(outgoing);
    }

    /// Writes bytes of the shadow, which stay there until they are sent.
    fn write_shadow(&self, cookie: &Cookie, shadow: &Registered, offset: usize, len: usize) {
        let mut room = None;
        self.operate("fi_writemsg", || {
            if room.is_none() {
                room = lock(&self.free).pop();
            }
            let Some(room) = room else { return -(libc::EAGAIN as isize) };
            let iov = libc::iovec {
                // SAFETY: inside the shadow.
                iov_base: unsafe { shadow.map.base().add(offset) }.cast(),
                iov_len: len,
            };
            let remote = RmaIov { addr: cookie.base.wrapping_add(offset as u64), len, key: cookie.key };
            let desc = shadow.descriptor();
            let message = MsgRma {
                msg_iov: &iov,
                desc: &desc,
                iov_count: 1,
                addr: u64::MAX,
                rma_iov: &remote,
                rma_iov_count: 1,
                context: (&raw const self.rooms[room as usize]).cast_mut().cast(),
                data: 0,
            };
            let fence = if self.nic.traits.fenced { abi::FENCE } else { 0 };
            // SAFETY: the endpoint is enabled; what the message points to lives until the call
            // returns, and shadow and room until it is complete.
            unsafe { ((*(*self.endpoint).rma).writemsg)(self.endpoint, &message, abi::COMPLETION | fence) }
        });
    }
}

/// The peer's segment.
impl Remote for Link {
    unsafe fn put(&self, offset: usize, from: *const u8, len: usize) {
        let Some(cookie) = self.cookie.get() else { return };
        assert!(offset.checked_add(len).is_some_and(|end| end <= cookie.len));
        self.put_piece(offset, from, len, |link| {
            let Some(shadow) = link.shadow.get() else { return };
            // SAFETY: the caller vouches for `from`; the range was checked.
            unsafe { shadow.map.copy_in(offset, from, len) };
            link.write_shadow(cookie, shadow, offset, len);
        });
    }

    fn put_word(&self, offset: usize, value: u64) {
        self.tell(&Item::Word { offset: offset as u64, value });
    }

    /// Waits for company as long as a thread helps; else the port's thread would have to be woken
    /// for it.
    fn put_word_soon(&self, offset: usize, value: u64) {
        let mut outgoing = lock(&self.outgoing);
        self.add(&mut outgoing, &Item::Word { offset: offset as u64, value });
        // SeqCst: see `pay`.
        self.owing.store(true, Ordering::SeqCst);
        if !self.helped.load(Ordering::SeqCst) {
            self.send_unless_held(&mut outgoing);
        } else if !self.looked_after.load(Ordering::SeqCst) {
            // SeqCst: the port's thread stores that it sleeps for good, and then checks `owing`.
            // Either it sees this, or this sees its store.
            self.server.ring();
        }
        self.release(outgoing);
    }

    /// The peer checks whether the tripwire is armed: nothing is left for the caller to do.
    fn stimulate(&self, offset: usize, interest: u64) -> u64 {
        self.tell(&Item::Stimulate { offset: offset as u64, interest });
        0
    }

    /// Cannot be known here, so it may be.
    fn armed(&self, _offset: usize, _interest: u64) -> bool {
        true
    }

    /// The word's old value is not known here: this returns 0.
    fn or_word(&self, offset: usize, bits: u64) -> u64 {
        self.tell(&Item::Or { offset: offset as u64, bits });
        0
    }
}

/// A link that is held: see [`Link::hold`].
#[must_use]
pub struct Held<'a>(&'a Link);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // In this order: operations that are under way use memory and queue.
        nic::close(self.endpoint.cast());
        nic::close(self.queue.cast());
    }
}
