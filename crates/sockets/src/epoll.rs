//! epoll sets with promoted members. The program's set E stays the kernel's. A promoted connection is taken out of E and put into an
//! inner set, itself a member of E, edge-triggered, for kicks and the end of the connection; so whoever waits on E from outside
//! (a set that holds E, a poll) still wakes. epoll_wait() on E serves promoted members from a list of candidates: a member is on
//! the list, or its tripwire is armed. Hints in the links' segments put members on the list, so the work is O(ready).
//!
//! Level-triggered members stay on the list while they are ready. Edge-triggered ones leave it when reported and are armed at once;
//! one-shot ones leave it and are not armed until EPOLL_CTL_MOD.
//!
//! Whoever waits on E from outside asks the kernel, which sees the inner set only: kicks that were taken long ago, edges of adding,
//! the bell, but not that a member on the list is still ready. So sets that are *watched* (they are, or were, members of another
//! set or given to poll) are *settled* before the kernel is asked about them: what is pending in the inner set is taken out, and
//! a lamp, an eventfd in the inner set, is lit if a member is ready and put out if none is.

mod candidates;
mod control;
mod edges;
mod members;
mod neighbours;
mod queues;
pub(crate) mod set;
mod sets;
mod standin;
mod waiting;
mod watching;

pub use control::control;
pub use edges::watch;
pub(crate) use edges::{another_edge, count_members};
pub(crate) use members::waited_for;
pub use members::{adopt, forget, leave, untimely, want_room};
pub(crate) use queues::{hear_others, sets_in_use};
pub use sets::{abandoned, closed, created, duplicated, forked, freeze, share_members, thaw};
pub(crate) use sets::{renounce, uses};
pub(crate) use standin::drop_stand_ins;
pub use waiting::wait;
pub use watching::{nest, settle};
