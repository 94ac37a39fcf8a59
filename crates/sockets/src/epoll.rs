//! epoll sets with promoted members. The program's set E stays the kernel's. A promoted connection
//! is taken out of E and put into an inner set, itself a member of E, edge-triggered, for kicks and
//! the end of the connection. So a thread that waits on E from outside (a set that holds E, a poll)
//! still wakes. epoll_wait() on E serves promoted members from a list of candidates: a member is on
//! the list, or its tripwire is armed. Hints in the links' segments put members on the list, so the
//! work is O(ready). The kernel part of E is asked when the rings have nothing, and at least every
//! 50 us.
//!
//! Level-triggered members stay on the list while they are ready. Edge-triggered ones leave it when
//! they are reported, and are armed at once, before they are checked; the write position and the
//! end of the connection that were last reported are remembered, so that an edge is reported once.
//! One-shot members leave the list and are not armed until EPOLL_CTL_MOD. A member that the program
//! takes out (EPOLL_CTL_DEL) stays registered in the inner set: redis-benchmark takes its
//! connections out and puts them in again for every request.
//!
//! **Spinning.** A set does not spin while one of its members' peers waits on the set's own
//! processor (peers tell where they wait; `neighbours.rs`). If it never comes to sleep, it gives
//! the processor away now and then. Real-time threads never spin.
//!
//! **Order.** Events are reported in the order in which they happened, and none without those
//! before it: with tcp a program that writes to two connections may count on that. Hints carry a
//! stamp of their setter, are listed in that order, and are taken again after members were checked.
//! Bytes may also come by tcp: to a member that is the kernel's, or whose peer has not changed over
//! yet. Then the kernel is asked each time, and the rings' bell, which is armed although nobody
//! sleeps, stands among its events where the first hint stands. That holds as long as the bell
//! rings for hints that were not reported. So hints that came while the kernel was asked are set
//! aside until it has been asked again, and a setter whose hint was taken, but which has not rung
//! yet (FIRED shows it), is waited for (`Set::wait_for_ringers`).
//!
//! **Promoting members.** Facts that only the kernel knows decide when members may be promoted
//! (`epoll::untimely`). Whether a one-shot member has fired: it is promoted while the program arms
//! it, and at no other time. Whether an edge was reported: this follows from when the set was last
//! emptied. With unread bytes promotion is put off a few times; then an edge may be reported twice,
//! which programs must cope with.
//!
//! **Back to tcp.** Any thread that notices it moves a connection back, between hosts also the
//! progress thread. For room that was always there the kernel has no edge, so sets that wait for
//! room get one then (`demote::by_tcp`). A thread that finds no room says that it wants some, and
//! then checks once more which path it is (`epoll::want_room`).
//!
//! **Watched sets.** A set is *watched* if it is, or was, a member of another set, or was given to
//! poll or select: then the kernel is asked about it, which sees only what is pending in the inner
//! set: kicks that were taken long ago, edges of adding, the bell, but not that a member on the
//! list is still ready. So watched sets are *settled* before such a question and after every
//! wake-up: the inner set is drained, the queue's sleep words and the members on the list are
//! armed, the list is checked without taking edges, and the *lamp*, an eventfd in the inner set, is
//! lit if a member is ready and put out if none is. Arrivals make edges for an outer edge-triggered
//! registration by their bell or kick, as the lamp is only touched when it changes. A set with sets
//! inside sleeps in poll on its own descriptor, settles, and asks epoll_wait without waiting: a
//! spurious wake-up takes no edge and no one-shot, and never reaches the program.

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
pub use members::{adopt, forget, leave, part, untimely, want_room};
pub(crate) use queues::{hear_others, sets_in_use};
pub use sets::{abandoned, closed, created, duplicated, forked, freeze, share_members, thaw};
pub(crate) use sets::{renounce, uses};
pub(crate) use standin::drop_stand_ins;
pub use waiting::wait;
pub use watching::{nest, settle};
