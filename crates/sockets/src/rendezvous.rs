//! How a connection finds its other half: posting, linking, offering and taking a slot. All of it is *housekeeping* that calls on
//! a connection do on the way while it is still on tcp; nothing waits, and each step may fail and be taken up again later.

mod agreement;
mod hello;
mod pairing;
mod posted;
mod posting;
mod ticking;

pub use agreement::{answered, forked, steady};
pub(crate) use agreement::{close, end_far, freeze, give_up, owned, renounce, shut, thaw};
pub(crate) use hello::send_all_away;
pub use pairing::serve_offered;
pub(crate) use pairing::try_serve;
pub use posted::{address, hurry, own_token, posted_conn};
pub use ticking::{nap, tick};
