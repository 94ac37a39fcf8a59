//! The work of a Virtual Interface's queues: posting descriptors, taking them back, and waking
//! waiters.

use core::ffi::c_void;
use std::sync::Arc;

use crate::abi::{Descriptor, ErrorCode, Return, State, reliability, status};
use crate::cq::members as cq;
use crate::descriptor::{Operation, Posted};
use crate::handlers;
use crate::handles::Found;
use crate::limits::MAX_DESCRIPTORS;
use crate::memory::{Regions, Rights};
use crate::opened;
use crate::queue::{Done, Outcome, SendQueue};
use crate::segment::{at, wake};
use crate::socket::{End, Message};
use crate::transfer::{self, Memory, Sent};
use crate::until::Until;
use crate::vi::connection::{Breach, end};
use crate::vi::places::{DEFERRED, Queue, Vi, event, find, manner, standard};
use crate::vi::waking::{receive_done_now, send_done_now};

/// `VipPostSend`: sends, writes or reads as a descriptor says. It is done when this returns, unless
/// it waits for the peer ([`DEFERRED`]). `InvalidParameter`, and an error of its own, if not even
/// its status can be written; `ErrorResource` if there are too many.
///
/// # Safety
/// Registered memory must be mapped.
#[inline(always)]
pub unsafe fn post_send(handle: *mut c_void, descriptor: *mut Descriptor, region: u32) -> Result<(), Return> {
    let vi = find(handle)?;
    let regions = opened::regions()?;
    let mut send = vi.send()?;
    let queue = &mut *send;
    let Some(list) = &mut queue.list else { return Err(Return::InvalidParameter) };
    if list.len() >= MAX_DESCRIPTORS {
        drop(send);
        handlers::error(event(handle, ErrorCode::ViOverrun, descriptor));
        return Err(Return::ErrorResource);
    }
    // SAFETY: the caller vouches for registered memory.
    let read = unsafe { Posted::read(regions, queue.asker, descriptor, region, false, queue.most) };
    let Ok(mut posted) = read else {
        drop(send);
        handlers::error(event(handle, ErrorCode::PostDesc, descriptor));
        return Err(Return::InvalidParameter);
    };
    if matches!(posted.operation, Operation::Read(_)) && standard(queue.level) == reliability::UNRELIABLE {
        // There is no RDMA read at this level.
        posted.errors |= status::FORMAT_ERROR;
    }
    let tells = posted.tells_the_peer();
    let remote = list.is_remote();
    if remote {
        hold(list.memory.as_ref(), true);
    }
    // SAFETY: the buffers lie in registered memory.
    let outcome = unsafe { list.post(regions, queue.asker, posted, manner(queue.level)) };
    let told =
        if outcome == Outcome::Done { tells && tell_peer(list.memory.as_ref()) } else { tell_untold(list) };
    if remote {
        hold(list.memory.as_ref(), false);
    }
    let failure = end_failed(queue, regions, outcome);
    send_done_now(queue);
    if outcome == Outcome::Done && !told {
        return Ok(());
    }
    let connection = vi.connection();
    drop(send);
    after_send(handle, &vi, outcome, failure, told, connection);
    Ok(())
}

/// Between hosts: holds the wire, so that everything that is put goes together, or releases it.
#[cold]
fn hold(memory: Option<&Arc<Memory>>, hold: bool) {
    if let Some(wire) = memory.and_then(|memory| memory.theirs.wire()) {
        if hold { wire.hold() } else { wire.let_go() }
    }
}

/// As [`tell_peer`], for the parts of a message that waits.
#[cold]
fn tell_untold(list: &mut SendQueue) -> bool {
    list.take_untold() && tell_peer(list.memory.as_ref())
}

/// Rare work after a send.
#[cold]
fn after_send(
    handle: *mut c_void,
    vi: &Found<Vi>,
    outcome: Outcome,
    failure: Option<Failure>,
    kick: bool,
    connection: u64,
) {
    if kick {
        vi.kick();
    }
    match outcome {
        Outcome::Done => {}
        Outcome::Deferred => go_on_sending(handle),
        Outcome::Failed(_) => {
            if let Some(failure) = failure {
                failed(handle, vi, failure, connection);
            }
        }
        Outcome::Wrong => {
            let reliable = vi.send().is_ok_and(|send| send.level & reliability::UNRELIABLE == 0);
            if reliable {
                end(handle, vi, End::Broken, Some(connection));
            }
        }
    }
}

/// What follows from a send that has failed.
struct Failure {
    /// The peer is to be woken, as its descriptor says so, too.
    kick: bool,
    /// The connection ends.
    broken: bool,
    message: Option<Message>,
}

/// Ends the descriptor of a send that has failed: the reliability level decides what it says. Under
/// the lock under which it was tried: another thread would try it again.
#[inline(always)]
fn end_failed(queue: &mut Queue<SendQueue>, regions: &Regions, outcome: Outcome) -> Option<Failure> {
    match outcome {
        Outcome::Failed(sent) => Some(failure(queue, regions, sent)),
        _ => None,
    }
}

#[cold]
fn failure(queue: &mut Queue<SendQueue>, regions: &Regions, sent: Sent) -> Failure {
    let reads = queue.list.as_ref().is_some_and(SendQueue::has_failed_to_read);
    let forbidden = if reads { Message::ReadForbidden } else { Message::WriteForbidden };
    let (errors, message) = match (sent, standard(queue.level)) {
        (Sent::NoDescriptor, reliability::UNRELIABLE) => (0, Some(Message::ReceiveQueueEmpty)),
        (Sent::TooLong, reliability::UNRELIABLE) => (0, None),
        (Sent::Forbidden, reliability::UNRELIABLE) => (0, Some(forbidden)),
        (Sent::NoDescriptor, reliability::RECEPTION) => {
            (status::REMOTE_DESC_ERROR, Some(Message::ReceiveQueueEmpty))
        }
        (Sent::TooLong, reliability::RECEPTION) => (status::REMOTE_DESC_ERROR, None),
        (Sent::NoDescriptor, _) => (status::TRANSPORT_ERROR, Some(Message::ReceiveQueueEmpty)),
        (Sent::TooLong, _) => (status::TRANSPORT_ERROR, None),
        (Sent::Forbidden, reliability::RECEPTION) => (status::RDMA_PROT_ERROR, None),
        (Sent::Forbidden, _) => (status::RDMA_PROT_ERROR, Some(forbidden)),
        (Sent::Done | Sent::Lost | Sent::NoRoom, _) => (status::TRANSPORT_ERROR, None),
    };
    let mut kick = false;
    if let Some(list) = &mut queue.list {
        kick = sent == Sent::TooLong && tell_peer(list.memory.as_ref());
        list.end_failed(regions, errors);
    }
    Failure { kick, broken: errors != 0, message }
}

/// Tells of it, and ends the connection where that must be.
fn failed(handle: *mut c_void, vi: &Found<Vi>, failure: Failure, connection: u64) {
    if failure.kick {
        vi.kick();
    }
    if let Some(message) = failure.message {
        vi.message(message);
    }
    if failure.broken {
        end(handle, vi, End::Broken, Some(connection));
    }
}

/// Goes on with sends that wait for the peer to post descriptors; arms the tripwire for these.
pub fn go_on_sending(handle: *mut c_void) {
    let Ok(vi) = find(handle) else { return };
    let Ok(regions) = opened::regions() else { return };
    loop {
        let Ok(mut send) = vi.send() else { return };
        let queue = &mut *send;
        let Some(list) = &mut queue.list else { return };
        if !list.is_deferred() {
            return;
        }
        let Some(memory) = list.memory.clone() else { return };
        memory.mine.arm(at::COOKIE_TRIP, wake::AGENT);
        // SAFETY: the buffers lie in registered memory.
        let outcome = unsafe { list.go_on(regions, manner(queue.level)) };
        let tells = list.take_untold() || outcome == Some(Outcome::Done);
        let kick = tells && tell_peer(Some(&memory));
        let Some(outcome) = outcome else {
            // It stays armed.
            drop(send);
            if kick {
                vi.kick();
            }
            return;
        };
        let failure = end_failed(queue, regions, outcome);
        send_done_now(queue);
        let connection = vi.connection();
        drop(send);
        after_send(handle, &vi, outcome, failure, kick, connection);
    }
}

/// Carries out the request for RDMA of a peer on another host.
pub(crate) fn serve(handle: *mut c_void) {
    let (Ok(vi), Ok(regions)) = (find(handle), opened::regions()) else { return };
    let Ok(Some(attributes)) = vi.own().map(|own| own.attributes) else { return };
    let rights = Rights { write: attributes.enable_rdma_write != 0, read: attributes.enable_rdma_read != 0 };
    // A thread that ends the connection waits for the lock: afterwards the memory is the program's.
    let Ok(receive) = vi.receive() else { return };
    if vi.state() != State::Connected {
        return;
    }
    let Some(memory) = receive.list.as_ref().and_then(|list| list.memory.as_ref()) else { return };
    let Some(wire) = memory.theirs.wire() else { return };
    while let Some(request) = wire.requested() {
        // SAFETY: the regions are the program's, registered memory, which is mapped.
        let what = unsafe { transfer::serve(memory, regions, receive.asker, rights) };
        wire.reply(request, what);
    }
}

/// Wakes the peer for a message. True if its library's thread must be woken.
#[inline(always)]
fn tell_peer(memory: Option<&Arc<Memory>>) -> bool {
    let Some(memory) = memory else { return false };
    let armed = transfer::notify(memory, at::TRIP);
    armed != 0 && tell_others(memory, armed, 0)
}

#[cold]
fn tell_others(memory: &Memory, armed: u64, queue: usize) -> bool {
    let mut kick = armed & wake::AGENT != 0;
    if armed & wake::QUEUE != 0
        && let Some(hints) = memory.queues[queue]
    {
        kick |= cq::hint(&hints.map, hints.slot);
    }
    kick
}

/// `VipPostRecv`: gives the library a descriptor for a message that will come. Errors as of
/// [`post_send`].
///
/// # Safety
/// Registered memory must be mapped.
#[inline(always)]
pub unsafe fn post_receive(
    handle: *mut c_void,
    descriptor: *mut Descriptor,
    region: u32,
) -> Result<(), Return> {
    let vi = find(handle)?;
    let regions = opened::regions()?;
    let mut receive = vi.receive()?;
    let queue = &mut *receive;
    let Some(list) = &mut queue.list else { return Err(Return::InvalidParameter) };
    if list.len() >= MAX_DESCRIPTORS {
        drop(receive);
        handlers::error(event(handle, ErrorCode::ViOverrun, descriptor));
        return Err(Return::ErrorResource);
    }
    // SAFETY: the caller vouches for registered memory.
    let read = unsafe { Posted::read(regions, queue.asker, descriptor, region, true, queue.most) };
    let Ok(mut posted) = read else {
        drop(receive);
        handlers::error(event(handle, ErrorCode::PostDesc, descriptor));
        return Err(Return::InvalidParameter);
    };
    let wrong = posted.errors != 0;
    let lost = vi.state() == State::Error;
    if lost {
        posted.errors |= status::DESC_FLUSHED_ERROR;
    }
    let remote = list.is_remote();
    if remote {
        hold(list.memory.as_ref(), true);
    }
    list.post(posted);
    let mut kick = false;
    // Nobody else waits for cookies.
    if queue.level & DEFERRED != 0
        && let Some(memory) = &list.memory
    {
        let armed = transfer::notify(memory, at::COOKIE_TRIP);
        kick = armed != 0 && tell_others(memory, armed, 1);
    }
    if remote {
        hold(list.memory.as_ref(), false);
    }
    if wrong || lost {
        // SAFETY: the buffers lie in registered memory.
        while unsafe { list.go_on(regions) } == Ok(true) {}
        receive_done_now(queue);
    }
    let breaks = wrong && queue.level & reliability::UNRELIABLE == 0 && vi.state() == State::Connected;
    let connection = vi.connection();
    drop(receive);
    if kick {
        vi.kick();
    }
    if breaks {
        end(handle, &vi, End::Broken, Some(connection));
    }
    Ok(())
}

/// The result of [`send_done`] and its like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The first descriptor, which is done.
    Descriptor(Done),
    /// Nothing is posted.
    Empty,
    /// The first one is not done yet.
    NotYet,
}

/// `VipSendDone`: the first descriptor of the send queue, if it is done.
#[inline]
pub fn send_done(handle: *mut c_void) -> Result<Taken, Return> {
    let vi = find(handle)?;
    let mut send = vi.send()?;
    match &mut send.list {
        Some(list) => Ok(match list.finished.pop() {
            Some(done) => Taken::Descriptor(done),
            None if list.is_empty() => Taken::Empty,
            None => Taken::NotYet,
        }),
        _ => Err(Return::InvalidParameter),
    }
}

/// `VipRecvDone`: the first descriptor of the receive queue, if it is done.
#[inline(always)]
pub fn receive_done(handle: *mut c_void) -> Result<Taken, Return> {
    loop {
        match poll_receive(handle)? {
            Ok(taken) => return Ok(taken),
            Err(breach) => breach.end(handle),
        }
    }
}

/// As [`receive_done`], for callers with locks: they end the connection when they have released
/// them, and check again.
#[inline(always)]
pub(crate) fn poll_receive(handle: *mut c_void) -> Result<Result<Taken, Breach>, Return> {
    let vi = find(handle)?;
    let regions = opened::regions()?;
    let mut receive = vi.receive()?;
    let Some(list) = &mut receive.list else { return Err(Return::InvalidParameter) };
    if list.finished.is_empty() {
        // SAFETY: the buffers lie in registered memory.
        let looked = unsafe { list.go_on(regions) };
        if looked.is_err() && vi.state() == State::Connected {
            return Ok(Err(Breach(vi.connection())));
        }
    }
    let taken = match list.finished.pop() {
        Some(done) => Taken::Descriptor(done),
        None if list.is_empty() => Taken::Empty,
        None => Taken::NotYet,
    };
    if list.wakes() {
        drop(receive);
        vi.kick();
    }
    Ok(Ok(taken))
}

/// `VipSendWait`: as [`send_done`], and sleeps until there is one. `InvalidParameter` for a queue
/// that has a completion queue.
pub fn send_wait(handle: *mut c_void, until: Until) -> Result<Taken, Return> {
    // No matter what is in it, or comes meanwhile.
    if find(handle)?.send()?.bound.is_some() {
        return Err(Return::InvalidParameter);
    }
    loop {
        match send_done(handle)? {
            Taken::NotYet => {}
            found => return Ok(found),
        }
        let vi = find(handle)?;
        let segment = {
            let send = vi.send()?;
            let Some(segment) = &send.segment else { return Err(Return::InvalidParameter) };
            segment.arm(at::COOKIE_TRIP, wake::SLEEPERS);
            segment.clone()
        };
        match send_done(handle)? {
            Taken::NotYet => {}
            found => return Ok(found),
        }
        let Some(nanos) = until.left() else { return Err(Return::Timeout) };
        segment.sleep(at::COOKIE_TRIP, nanos);
    }
}

/// `VipRecvWait`: as [`receive_done`], and sleeps until there is one. `InvalidParameter` for a
/// queue that has a completion queue.
pub fn receive_wait(handle: *mut c_void, until: Until) -> Result<Taken, Return> {
    // No matter what is in it, or comes meanwhile.
    if find(handle)?.receive()?.bound.is_some() {
        return Err(Return::InvalidParameter);
    }
    loop {
        match receive_done(handle)? {
            Taken::NotYet => {}
            found => return Ok(found),
        }
        let vi = find(handle)?;
        let segment = {
            let receive = vi.receive()?;
            let Some(segment) = &receive.segment else { return Err(Return::InvalidParameter) };
            segment.arm(at::TRIP, wake::SLEEPERS);
            segment.clone()
        };
        match receive_done(handle)? {
            Taken::NotYet => {}
            found => return Ok(found),
        }
        let Some(nanos) = until.left() else { return Err(Return::Timeout) };
        segment.sleep(at::TRIP, nanos);
    }
}

/// The result of a completion queue's check of one of its Virtual Interfaces.
pub enum Completion {
    /// One more descriptor is done in the receive queue, or in the send queue.
    Done {
        /// In which of the two.
        receive: bool,
    },
    /// None. From now on a hint reports the next one, unless the caller is `patient`.
    Nothing,
    /// The peer breaks the rules.
    Broken(Breach),
}

/// For completion queue `cq`: whether a descriptor is done that it has not reported. `patient`: it
/// will ask again by itself.
pub fn tell(handle: *mut c_void, cq: *mut c_void, patient: bool) -> Completion {
    let (Ok(vi), Ok(regions)) = (find(handle), opened::regions()) else { return Completion::Nothing };
    {
        let Ok(mut send) = vi.send() else { return Completion::Nothing };
        if send.bound.is_some_and(|bound| bound.handle == cq)
            && let Some(list) = &mut send.list
        {
            if list.finished.tell() {
                return Completion::Done { receive: false };
            }
            list.finished.watched = patient;
        }
    }
    let Ok(mut receive) = vi.receive() else { return Completion::Nothing };
    if receive.bound.is_none_or(|bound| bound.handle != cq) {
        return Completion::Nothing;
    }
    let Some(list) = &mut receive.list else { return Completion::Nothing };
    list.finished.watched = patient;
    let mut done = list.finished.tell();
    for last in [patient, true] {
        if done {
            break;
        }
        // SAFETY: the buffers lie in registered memory.
        match unsafe { list.go_on(regions) } {
            Ok(true) => done = list.finished.tell(),
            Ok(false) if last => break,
            Ok(false) => {
                list.finished.watched = false;
                list.arm(wake::QUEUE);
                // By another thread, before that.
                done = list.finished.tell();
            }
            Err(_) if vi.state() == State::Connected => return Completion::Broken(Breach(vi.connection())),
            // A peer that has broken the rules before the connection exists. Once it exists, this
            // is checked again.
            Err(_) => {
                list.finished.watched = patient;
                break;
            }
        }
    }
    if list.wakes() {
        drop(receive);
        vi.kick();
    }
    if done { Completion::Done { receive: true } } else { Completion::Nothing }
}
