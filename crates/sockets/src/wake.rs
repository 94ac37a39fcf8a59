//! Sleeping and waking: tripwires, sleepers, and how a peer is woken.
//!
//! Every connection end has a tripwire word in its own segment. A reader (or a writer that needs
//! room) spins, arms it, checks again, and sleeps in the kernel on the companion. The peer, after
//! publishing, fences, and if it finds the word armed swaps it to zero and wakes:
//!
//! * `WORD`: the sleeper is in futex(2) on the tripwire itself ([`word`]): nothing is cheaper to
//!   sleep in and to be woken by, and there is nothing to take out; also for peers of other users.
//!   Beside a mode, if others wait, too. Only by who is alone, and only for a while: no futex tells
//!   of the end of a connection whose process was killed. The others are for who sleeps longer, or
//!   waits for more than one connection.
//! * `KICK`: one byte on the companion, in the direction of the sleeper. It wakes any waiter in any
//!   process by any call. Kicks are counted (KICKS), so the sleeper knows exactly how many bytes in
//!   the companion are not data. Firings that have been carried out are counted, too (FIRED), so
//!   close() and recalls know that none is on the way: a kick that came after close() would reset
//!   the connection.
//! * `BELL`: a write to an eventfd that the process has passed by the link. Cheaper; only if there
//!   is a single waiter on the connection. Each thread that sleeps has one of its own
//!   ([`call_bell`]). Peers of other users have none, as a process that has one can silence it or
//!   make it block: they ring by datagrams ([`fabric::bell::Loud`]), which takes 1.1 us more.
//! * `QUEUE`: for epoll: sets the slot's bit in the queue's hint bitmap, then rings the queue's
//!   bell if its owner sleeps. Never by a kick: the hint may be of a connection that the set no
//!   longer has, or that another set had when the queue was its own. A kick on that connection
//!   would wake nobody here, but would have disarmed the sleep word. A set that finds no free queue
//!   arms its members for kicks of their own.
//!
//! The first piece of a write of more than 32 KB wakes the sleeper, as tcp's first segment would.
//!
//! The rules (ARCHITECTURE.md, "Sleeping and waking", has them all) in more detail:
//!
//! * Kicks are counted before they are sent. One that the companion could not take stays a debt
//!   that is paid before anything else.
//! * An arm is never taken back unless the connection has one waiter, and a sleep word of an event
//!   queue never is: both could undo another thread's. A stale arm costs one spurious wake-up.
//! * With several sleepers on one connection it is armed for kicks, and the last one awake takes
//!   the kick out ([`crate::kicks::take`]). If one took it out before, also one that does not sleep
//!   itself, those that are woken but have no processor yet would stay asleep for good. Sleepers
//!   that are gone (killed, or jumped out of by a signal handler) are found by their thread ids.
//!   Epoll sets get another edge instead.
//! * A killed peer tells nothing. It counts as a reset if bytes of ours are unread in its ring,
//!   else as an end, as with tcp; but where it went by tcp, the reset that a kick of ours brings
//!   about is told, as the kernel drops with it what had not been sent yet.

pub(crate) mod arm;
pub(crate) mod call_bell;
pub(crate) mod fire;
pub(crate) mod sleepers;
pub(crate) mod word;
