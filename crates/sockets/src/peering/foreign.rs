//! A peer on this host in a network namespace that ours does not show, as in another container.
//! Both map the same memory, so all is as with one in our own namespace but for two things. Our
//! kernel does not show its end of the connection: that it is the other end was proved by the
//! connection itself ([`crate::rendezvous`]). And its process may have no number here, so nobody
//! sends in its stead by a copy of its descriptor.

use super::kind::Facts;
pub(super) use super::local::{
    call_to_tcp, closed_unread, died_untold, end_due, end_link, fell_silent, further, has_agreed,
    has_settled, hear, is_over, is_silent, is_whole, kicks_ahead, may_come, may_finish, may_put, offered,
    promised, run_at, seek_stop, send_records, settle, taken,
};

pub(super) const FACTS: Facts = Facts {
    shares_memory: true,
    reaches_process: false,
    shares_names: false,
    shows_end: false,
    kept_by_children: true,
    uses_records: false,
};
