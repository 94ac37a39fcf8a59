//! Addresses that do not follow the rule, as bridges send them: the host behind which each was last
//! seen, as a switch learns it. A frame to an unknown one goes to all hosts.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use fabric::sys;

use crate::mac::Mac;

/// The most addresses that are remembered: a peer that invents addresses gets no more of our
/// memory.
const MOST: usize = 4096;
/// Seconds after which an address that is not seen any more is forgotten, as in bridges.
const AGE: u64 = 300;

/// The learned addresses.
#[derive(Debug, Default)]
pub struct Learned(RwLock<HashMap<Mac, Seen>>);

#[derive(Debug, Clone, Copy)]
struct Seen {
    host: u16,
    at: u64,
}

impl Learned {
    /// Notes that a frame from `from` came from `host`.
    pub fn note(&self, from: Mac, host: u16) {
        let now = seconds();
        let read = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if read.get(&from).is_some_and(|seen| seen.host == host && now < seen.at + 10) {
            return;
        }
        drop(read);
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST && !all.contains_key(&from) {
            all.retain(|_, seen| now < seen.at + AGE);
            if all.len() >= MOST {
                return;
            }
        }
        all.insert(from, Seen { host, at: now });
    }

    /// The host behind which `to` is.
    pub fn host(&self, to: Mac) -> Option<u16> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.get(&to).filter(|seen| seconds() < seen.at + AGE).map(|seen| seen.host)
    }

    /// How many addresses are known.
    pub fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn seconds() -> u64 {
    sys::now() / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_move_and_are_bounded() {
        let learned = Learned::default();
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        assert_eq!(learned.host(mac), None);
        learned.note(mac, 1);
        learned.note(mac, 2);
        assert_eq!(learned.host(mac), Some(2));
        for i in 0..10_000u32 {
            let [a, b, c, d] = i.to_be_bytes();
            learned.note(Mac([2, 1, a, b, c, d]), 3);
        }
        assert_eq!(learned.len(), MOST);
        assert_eq!(learned.host(mac), Some(2));
    }
}
