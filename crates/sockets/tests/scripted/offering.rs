//! Offers of the library's, and what follows from the answer.

use libc::EAGAIN;

use crate::{posted, until};

/// Between network namespaces: a proof may be good for one end, and not for the other.
#[test]
fn an_end_that_refuses_again_is_no_longer_taken_for_proved() {
    let (ours, mut peer) = posted();
    peer.is_proved_to(&ours);
    for refusals in 1..=2 {
        assert!(ours.is_introduced());
        until("it is offered a slot", || {
            ours.tick();
            ours.offered().is_some()
        });
        peer.refuse(ours.offered().unwrap());
        until("that is refused", || {
            assert_eq!(ours.recv(1), Err(EAGAIN));
            ours.offered().is_none()
        });
        assert_eq!(ours.is_introduced(), refusals < 2);
    }
}
