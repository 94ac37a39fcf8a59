//! The rules of this process: which of its connections stay on TCP because somebody wrote so. Only
//! those that are for this program are kept, in memory that is written once, before any connection
//! is followed. They are asked when a connection is about to be posted, with addresses that posting
//! needs anyway: a call never asks, a short connection neither.

use fabric::sync::{AtomicU64, Ordering};
use fabric::sys::{self, Errno};
use host::addr::Addr;
use options::rules::Rules;
use options::{Ends, PathMode, Role, RuleFault};

use crate::process;

static RULES: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Begins, with the rules and the program's name, before connections are followed. A fault, and
/// none of the rules counts.
pub fn start<'a>(rules: Rules<'a>, program: &[u8]) -> Result<(), RuleFault<'a>> {
    let mut count = 0;
    for rule in rules.clone() {
        count += usize::from(rule?.is_for(program));
    }
    let ours = rules.filter_map(Result::ok).filter(|rule| rule.is_for(program)).map(|rule| rule.ends);
    if count > 0 && keep(count, ours).is_err() {
        crate::process::bar(crate::reason::Reason::NoMemory);
    }
    Ok(())
}

fn keep(count: usize, rules: impl Iterator<Item = Ends>) -> Result<(), Errno> {
    let at = sys::mmap_private(count * size_of::<Ends>())?.cast::<Ends>();
    let mut kept = 0;
    for rule in rules.take(count) {
        // SAFETY: the mapping has room for `count`, is page-aligned, and nobody else knows it yet.
        unsafe { at.add(kept).write(rule) };
        kept += 1;
    }
    RULES.store(at as u64, Ordering::Relaxed);
    COUNT.store(kept as u64, Ordering::Release);
    Ok(())
}

/// Whether the end of a connection with these addresses is to stay on TCP.
pub fn keep_on_tcp(role: Role, own: Addr, peer: Addr) -> bool {
    let count = COUNT.load(Ordering::Acquire) as usize;
    if count == 0 {
        return false;
    }
    // SAFETY: COUNT was stored after so many rules were written there, and they are never changed
    // or unmapped.
    let rules = unsafe { core::slice::from_raw_parts(RULES.load(Ordering::Relaxed) as *const Ends, count) };
    let address = match role {
        Role::Client => peer,
        Role::Server => own,
    };
    let first = rules.iter().find(|rule| rule.include(role, &address.ip, address.port));
    first.is_some_and(|rule| rule.path == PathMode::Tcp)
}

/// Whether an address is in the networks that count as this cluster's.
pub fn in_cluster(address: Addr) -> bool {
    process::options().cluster.contains(address.ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8, port: u16) -> Addr {
        Addr { ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, last], port }
    }

    #[test]
    fn the_address_that_counts_is_the_peers_or_the_own() {
        let (own, peer) = (address(1, 40_000), address(2, 80));
        assert!(!keep_on_tcp(Role::Client, own, peer), "without rules everything may use memory");
        let rules = b"use tcp * other *:*\nuse tcp client me 127.0.0.2:80\nuse tcp server me *:40000\nuse";
        let fault = start(options::rules::in_file(rules), b"me").unwrap_err();
        assert_eq!(fault.number, 4);
        assert!(!keep_on_tcp(Role::Client, own, peer), "rules with a fault do not count");
        start(options::rules::in_file(&rules[..rules.len() - 4]), b"me").unwrap();
        assert!(keep_on_tcp(Role::Client, own, peer) && !keep_on_tcp(Role::Client, peer, own));
        assert!(keep_on_tcp(Role::Server, own, peer) && !keep_on_tcp(Role::Server, peer, own));
    }
}
