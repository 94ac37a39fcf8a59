//! How a connection finds its other half: posting, linking, offering and taking a slot. All of it
//! is *housekeeping* that calls on a connection do on the way while it is still on tcp; nothing
//! waits, and each step may fail and be taken up again later.
//!
//! **When an end is posted.** After some socket calls on a connection ([`crate::worth`]), so that
//! short ones are never touched; and only if these calls come at `promote_rate`, or the process is
//! busy. A process that sleeps whenever something comes gains nothing: the wake-ups cost the same
//! by either path, and the way to a kick and back is longer. The program must also have been seen
//! to wait for the connection ([`crate::seen`]). An end that a rule keeps on tcp ([`crate::rules`])
//! is not posted. Rules are asked only here, because posting needs the addresses anyway: so they
//! cost calls and short connections nothing.
//!
//! **How the other end is found.** The end that is posted second finds the first one's entry on the
//! board, which names the process's listener, an abstract UNIX socket. It opens a link to that
//! process, unless the two have one. Links are answered from hooks of posted connections
//! (`ticking.rs`): at most once in 200 us, and ever more rarely, down to once a second, while there
//! is no sign of the other end. A reader on tcp that is held up for 2 us can fall into step with
//! its writer and cost it some per cent. There is no helper thread and no daemon on one host.
//!
//! **The offer.** On a ready link one side takes a slot and sends OFFER (slot, both cookies)
//! through the link's control queue; the other answers ACCEPT or REFUSE. Before that both prove the
//! pairing: the kernel's record (sock_diag) of the reversed 4-tuple must have the SO_COOKIE that
//! the peer claims, and the uid that SO_PEERCRED of the UNIX socket shows. An end that takes an
//! offer uses the ring only when it knows that the offer stands: the peer may be taking it back
//! (before fork, or at the end), and another thread may be writing.
//!
//! From the offer on a connection is *managed*: its calls are Shunt's, non-blocking on the
//! companion and under the locks of its directions. It becomes managed only when no call on it is
//! in the kernel. Signals are blocked where an offer is made, taken or answered: a handler that
//! used the connection would wait for the thread that it has interrupted.

mod agreement;
mod hello;
pub mod meeting;
mod pairing;
mod posted;
mod posting;
mod ticking;

pub use agreement::{answered, forked, steady};
pub(crate) use agreement::{
    close, end_remote, freeze, give_up, is_agreed_at_exit, owned, renounce, shut, thaw,
};
pub(crate) use hello::send_all_away;
pub use pairing::serve_offered;
pub(crate) use pairing::{try_serve, try_sweep};
pub use posted::{address, hurry, own_token, posted_conn};
pub use ticking::{nap, tick};
