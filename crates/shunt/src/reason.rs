//! The names of the reasons for which a connection stays on, or goes back to, TCP. Counters and
//! homes carry their numbers.

use sockets::reason::NAMES;

/// The name of a reason; a number that this version does not know is shown as it is.
pub fn name(code: usize) -> String {
    NAMES.get(code).map_or_else(|| format!("reason {code}"), |name| (*name).to_string())
}
