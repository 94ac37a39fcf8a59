//! Virtual Interfaces: one end of a connection, with its two work queues, and the state machine
//! around them (specification, sections 2.2 and 3.1).
//!
//! The locks of one are `Vi::own`, the send queue's, the receive queue's, in this order; the
//! crate's documentation has the order of all. The state is changed under all three, and may be
//! read under any.

use core::ffi::c_void;
use std::sync::Arc;

use crate::abi::{Return, State, ViAttributes, reliability};
use crate::cq::members as cq;
use crate::handlers;
use crate::limits::MAX_TRANSFER;
use crate::memory::Asker;
use crate::opened;
use crate::queue::{ReceiveQueue, SendQueue};
use crate::segment::Segment;
pub use crate::socket::End;

mod connection;
mod places;
mod waking;
mod work;

pub use connection::Breach;
use connection::wake_own;
pub(crate) use connection::{Offer, abandon, begin, end, established, exchange, prepare};
pub use places::{DEFERRED, SPLIT, Vi};
use places::{Own, Queue, VIS, standard};
pub(crate) use places::{find, in_child, nic_of};
pub use work::{
    Completion, Taken, go_on_sending, post_receive, post_send, receive_done, receive_wait, send_done,
    send_wait, tell,
};
pub(crate) use work::{poll_receive, serve};

/// `VipCreateVi`.
pub fn create(
    nic: *mut c_void,
    attributes: ViAttributes,
    send_cq: *mut c_void,
    receive_cq: *mut c_void,
) -> Result<*mut c_void, Return> {
    opened::check(nic)?;
    check(nic, &attributes)?;
    let segment = Arc::new(Segment::new().map_err(|_| Return::ErrorResource)?);
    let (handle, vi) = VIS.give_out().ok_or(Return::ErrorResource)?;
    let bind = |cq: *mut c_void| if cq.is_null() { Ok(None) } else { cq::join(cq, nic, handle).map(Some) };
    let bound = bind(send_cq).and_then(|send| {
        if receive_cq == send_cq {
            return Ok((send, send));
        }
        match bind(receive_cq) {
            Ok(receive) => Ok((send, receive)),
            Err(error) => {
                send.iter().for_each(cq::leave);
                Err(error)
            }
        }
    });
    let (send_bound, receive_bound) = bound.inspect_err(|_| {
        VIS.take_back(&vi);
    })?;
    let (mut own, mut send, mut receive) = vi.all()?;
    own.nic = nic;
    send.list = Some(SendQueue::default());
    receive.list = Some(ReceiveQueue::default());
    send.bound = send_bound;
    receive.bound = receive_bound;
    if let Some(list) = &mut send.list {
        list.finished.watched = true;
    }
    if let Some(list) = &mut receive.list {
        list.finished.watched = true;
    }
    set(&mut own, &mut send, &mut receive, attributes);
    send.segment = Some(segment.clone());
    receive.segment = Some(segment);
    vi.set_state(State::Idle);
    Ok(handle)
}

fn check(nic: *mut c_void, attributes: &ViAttributes) -> Result<(), Return> {
    let level = standard(attributes.reliability_level);
    if ![reliability::UNRELIABLE, reliability::DELIVERY, reliability::RECEPTION].contains(&level) {
        return Err(Return::InvalidReliabilityLevel);
    }
    if attributes.max_transfer_size == 0 || attributes.max_transfer_size as usize > MAX_TRANSFER {
        return Err(Return::InvalidMtu);
    }
    if !attributes.qos.is_null() {
        return Err(Return::InvalidQos);
    }
    opened::check_ptag(nic, attributes.ptag)?;
    if attributes.enable_rdma_read != 0 && level == reliability::UNRELIABLE {
        return Err(Return::InvalidRdmaRead);
    }
    Ok(())
}

fn set(
    own: &mut Own,
    send: &mut Queue<SendQueue>,
    receive: &mut Queue<ReceiveQueue>,
    attributes: ViAttributes,
) {
    let asker = Asker { nic: own.nic, ptag: attributes.ptag };
    own.attributes = Some(attributes);
    (send.asker, receive.asker) = (asker, asker);
    (send.level, receive.level) = (attributes.reliability_level, attributes.reliability_level);
    (send.most, receive.most) =
        (attributes.max_transfer_size as usize, attributes.max_transfer_size as usize);
}

/// `VipDestroyVi`. `InvalidState` unless it is Idle. Descriptors that were not taken back are
/// dropped: programs that end do not take them back.
pub fn destroy(handle: *mut c_void) -> Result<(), Return> {
    let vi = find(handle)?;
    let (bounds, segment) = {
        let (_own, mut send, mut receive) = vi.all()?;
        if vi.state() != State::Idle {
            return Err(Return::InvalidState);
        }
        let regions = opened::regions()?;
        if let Some(list) = &mut receive.list {
            list.clear(regions);
        }
        VIS.take_back(&vi);
        (send.list, receive.list) = (None, None);
        let bounds = (send.bound.take(), receive.bound.take());
        receive.segment = None;
        (bounds, send.segment.take())
    };
    handlers::forget(handle);
    if let Some(segment) = segment {
        wake_own(&segment);
    }
    bounds.0.iter().for_each(cq::leave);
    if bounds.1.is_some_and(|bound| bounds.0.is_none_or(|other| other.handle != bound.handle)) {
        bounds.1.iter().for_each(cq::leave);
    }
    Ok(())
}

/// The results of `VipQueryVi`.
pub struct Query {
    /// Where it is in the state machine.
    pub state: State,
    /// The attributes that it was made with.
    pub attributes: ViAttributes,
    /// Whether the send queue has no descriptor that is posted, or done and not taken back.
    pub send_empty: bool,
    /// As `send_empty`, for the receive queue.
    pub receive_empty: bool,
}

/// `VipQueryVi`.
pub fn query(handle: *mut c_void) -> Result<Query, Return> {
    let vi = find(handle)?;
    let (own, send, receive) = vi.all()?;
    match (own.attributes, &send.list, &receive.list) {
        (Some(attributes), Some(send), Some(receive)) => Ok(Query {
            state: vi.state(),
            attributes,
            send_empty: send.is_empty(),
            receive_empty: receive.is_empty(),
        }),
        _ => Err(Return::InvalidParameter),
    }
}

/// `VipSetViAttributes`. `InvalidState` unless it is Idle.
pub fn set_attributes(handle: *mut c_void, attributes: ViAttributes) -> Result<(), Return> {
    let vi = find(handle)?;
    let (mut own, mut send, mut receive) = vi.all()?;
    if vi.state() != State::Idle {
        return Err(Return::InvalidState);
    }
    check(own.nic, &attributes)?;
    set(&mut own, &mut send, &mut receive, attributes);
    Ok(())
}

/// `VipDisconnect`. All posted descriptors are done, flushed, when this returns. On an Idle one it
/// does nothing.
pub fn disconnect(handle: *mut c_void) -> Result<(), Return> {
    let vi = find(handle)?;
    end(handle, &vi, End::Disconnected, None);
    // The program may destroy the Virtual Interface next, and drop its handlers.
    handlers::poll_now(handle);
    crate::connect::pending::cancel(handle);
    Ok(())
}

/// Arms the tripwire of a queue for `whom`.
pub(crate) fn arm(handle: *mut c_void, trip: usize, whom: u64) {
    if let Ok(vi) = find(handle)
        && let Ok(send) = vi.send()
        && let Some(segment) = &send.segment
    {
        segment.arm(trip, whom);
    }
}

/// Destroys all Virtual Interfaces of a NIC handle that is being closed.
pub(crate) fn close(nic: *mut c_void) {
    for (handle, vi) in VIS.all() {
        if vi.own().is_ok_and(|own| own.nic == nic) {
            let _ = disconnect(handle);
            let _ = destroy(handle);
        }
    }
}

/// Waits until no peer writes to, or reads from, memory of this process that it found registered
/// before.
pub(crate) fn await_transfers() {
    for (_, vi) in VIS.all() {
        let Ok(receive) = vi.receive() else { continue };
        let memory = receive.list.as_ref().and_then(|list| list.memory.clone());
        drop(receive);
        if let Some(memory) = memory {
            memory.await_transfers();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Descriptor;
    use crate::memory::{Attributes, Rights};
    use crate::remote::Peer;
    use crate::segment::{BYTES, at};
    use crate::transfer::Memory;
    use crate::{nic, wire};
    use fabric::Remote;
    use fabric::shm::Map;
    use fabric::sync::{AtomicBool, Ordering};

    fn attributes(ptag: *mut c_void) -> ViAttributes {
        let (reliability_level, max_transfer_size) = (reliability::DELIVERY, 100);
        let qos = core::ptr::null_mut();
        ViAttributes {
            reliability_level,
            max_transfer_size,
            qos,
            ptag,
            enable_rdma_write: 0,
            enable_rdma_read: 0,
        }
    }

    #[test]
    fn who_found_one_that_is_destroyed_has_nothing_of_the_next_in_its_place() {
        let nic = nic::open(b"nic0").unwrap();
        let ptag = nic::create_ptag(nic).unwrap();
        let attributes = attributes(ptag);
        let make = || create(nic, attributes, core::ptr::null_mut(), core::ptr::null_mut()).unwrap();
        // Other tests make some, too, and may have taken the place.
        for _ in 0..100 {
            let first = make();
            let found = find(first).unwrap();
            assert!(found.all().is_ok() && found.nic() == Ok(nic));
            destroy(first).unwrap();
            let second = make();
            let next = find(second).unwrap();
            if !core::ptr::eq::<Vi>(&*found, &*next) {
                continue;
            }
            assert!(next.all().is_ok());
            for refused in [
                found.own().err(),
                found.send().err(),
                found.receive().err(),
                found.all().err(),
                found.nic().err(),
            ] {
                assert_eq!(refused, Some(Return::InvalidParameter));
            }
            assert!(found.socket().is_none());
            end(first, &found, End::Disconnected, None);
            assert!(query(second).is_ok() && query(first).is_err());
            return nic::close(nic).unwrap();
        }
        panic!("never the same place");
    }

    /// This once polled for ever.
    #[test]
    fn a_peer_that_breaks_the_rules_before_there_is_a_connection_is_found_when_there_is_one() {
        let nic = nic::open(b"nic0").unwrap();
        let ptag = nic::create_ptag(nic).unwrap();
        let (none, rights) = (core::ptr::null_mut(), Rights { write: false, read: false });
        let handle = create(nic, attributes(ptag), none, none).unwrap();
        let mut descriptor = Box::new(Descriptor::default());
        let (address, length) = ((&raw mut *descriptor).addr(), size_of::<Descriptor>());
        let region = nic::register(nic, address, length, Attributes { ptag, rights }).unwrap();
        // SAFETY: it is registered, and mapped.
        unsafe { post_receive(handle, &raw mut *descriptor, region) }.unwrap();
        let offer = begin(handle).unwrap();
        let memory = Arc::new(Memory {
            mine: offer.segment.clone(),
            theirs: Peer::near(Map::create(c"via-test", BYTES).unwrap().0),
            pid: 0,
            direct: AtomicBool::new(false),
            regions: None,
            arena: None,
            asker: Asker { nic, ptag },
            rights,
            queues: [None; 2],
        });
        assert!(prepare(handle, &memory));
        for word in (at::TRANSFERS..at::TRANSFERS + wire::TRANSFER_QUEUE).step_by(8) {
            offer.segment.map().put_word(word, 9 << 32 | 1);
        }
        assert_eq!(receive_done(handle), Ok(Taken::NotYet));
        find(handle).unwrap().set_state(State::Connected);
        assert!(matches!(receive_done(handle), Ok(Taken::Descriptor(done)) if done.errors != 0));
        assert_eq!(query(handle).unwrap().state, State::Error);
        nic::close(nic).unwrap();
    }

    #[test]
    fn an_end_that_was_found_before_does_not_end_the_next_connection() {
        let nic = nic::open(b"nic0").unwrap();
        let ptag = nic::create_ptag(nic).unwrap();
        let attributes = attributes(ptag);
        let handle = create(nic, attributes, core::ptr::null_mut(), core::ptr::null_mut()).unwrap();
        let vi = find(handle).unwrap();
        let before = vi.connection();
        // As `established` does.
        vi.connection.fetch_add(1, Ordering::Release);
        vi.set_state(State::Connected);
        end(handle, &vi, End::Left, Some(before));
        assert_eq!(vi.state(), State::Connected);
        end(handle, &vi, End::Left, Some(vi.connection()));
        assert_eq!(vi.state(), State::Error);
        nic::close(nic).unwrap();
    }
}
