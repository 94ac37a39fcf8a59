//! Two hosts: the library's connections between processes of which each is on a host of its own.
//!
//! Real, that is the library's own, in each of the two processes: the shell of Remote peering
//! (`sockets/src/peering`: outboxes, shadows, records, echoes, cut links), the progress thread
//! (`progress`) as a thread that the scheduler runs like others, and the links of `ofi` with their
//! port, down to libfabric's binary interface.
//!
//! Simulated:
//!
//! * libfabric ([`provider`]): its functions and tables as `ofi/abi.rs` declares them, which the
//!   library finds as it finds those of `libfabric.so`. What a provider may do, each run's does or
//!   does not, as the seed says: keep the order of writes and messages, or only behind fences; need
//!   the target's polling, or write into its memory by itself; say EAGAIN; complete late; have its
//!   own keys; address by offset.
//! * The network and the cards ([`network`]), with a thread of their own. A write comes late and in
//!   parts, in any order of its bytes; a message comes whole, into a buffer that was posted, and
//!   behind all that was sent before. Links die at any step: what was under way may come in part,
//!   and one end may learn of it later than the other.
//! * The agents ([`agent`]), as one process that introduces without proofs; the connection manager
//!   is for VIPL and has no part in this.
//! * The hosts: each process has an address, a board and memory of its own. The kernel's model is
//!   one object, in which they have nothing in common but the TCP connections between them.
//!
//! Not simulated: exec(), fork() of a process that has links, a device that is removed, malformed
//! messages (`fuzz/`), and a reader that leaves to the kernel with bytes of tcp unread: a record
//! may stand behind these, and come to the program as bytes.

mod agent;
pub mod network;
mod provider;
pub mod state;

use std::ffi::CString;

use sim::kernel::Pid;
use syscalls::Sysno;

pub use provider::find;

use crate::world::{self, World, with};
use network::{Network, Traits};
use state::{Agents, Hosts, Objects};

const CARD: Pid = 50;
const AGENTS: Pid = 51;

/// This run is one with two hosts, at 127.0.1.1 and 127.0.2.1.
pub fn begin(world: &mut World) {
    let traits = Traits {
        ordered: !world.once_in(3),
        polled: world.once_in(2),
        by_address: world.once_in(2),
        own_keys: world.once_in(2),
        inject: 128 << world.below(4),
        operations: [8, 16, 64, 300][world.below(4) as usize],
        busy: [0, 0, 2, 10][world.below(4) as usize],
        delay: [1, 1000, 20_000, 300_000][world.below(4) as usize],
        late: [1, 1000, 300_000][world.below(3) as usize],
        unaware: [1, 100_000, 20_000_000][world.below(3) as usize],
        dies_at: (!world.once_in(4)).then(|| {
            let most = 16 << world.below(8);
            world.below(most)
        }),
    };
    let seed = world.dice.rand_u64();
    world.judge.slack = 250_000_000;
    world.addresses = [0x7f00_0101, 0x7f00_0201];
    world.kernel.spawn(CARD, 0);
    world.kernel.spawn(AGENTS, 0);
    world.daemons.extend([CARD, AGENTS]);
    let card = world.spawn(CARD, run_card);
    world.spawn(AGENTS, agent::run);
    let shown = world.trace.is_on();
    let network = Network::new(seed, traits, card, shown);
    if shown {
        world.trace.note(world.kernel.now, CARD, CARD, format!("{traits:?}"));
    }
    world.hosts = Some(Hosts { network, objects: Objects::new(), agents: Agents::default() });
}

/// The environment of a process on a host of its own.
pub fn environment(end: usize) -> Vec<CString> {
    [
        "SHUNT_PROMOTE_AFTER=2",
        "SHUNT_PROMOTE_RATE=0",
        ["SHUNT_BOARD=/dev/shm/board-a", "SHUNT_BOARD=/dev/shm/board-b"][end],
        "SHUNT_CLUSTER=127.0.0.0/16",
        "SHUNT_LOG=none",
    ]
    .map(|text| CString::new(text).expect("no NUL inside"))
    .to_vec()
}

/// How long each end does something else before a turn: connections are introduced after a while.
/// `long`: one of them perhaps so long that what it has written must come without it.
pub fn pauses(world: &mut World, turn: u64, long: bool) -> [i32; 2] {
    if long && world.once_in(3) {
        let idle = world.below(2) as usize;
        return [0, 1].map(|end| if end == idle { 2000 } else { 0 });
    }
    let pause = match turn {
        3 => 110,
        4..8 => 1 + world.below(5) as i32,
        _ => world.once_in(3).into(),
    };
    [pause; 2]
}

/// The cards, and the network between them.
fn run_card() {
    loop {
        world::wait_for_network();
        loop {
            let (due, bell) = with(|world| {
                let (now, shown) = (world.kernel.now, world.trace.is_on());
                let network = &mut world.hosts.as_mut().expect("a run with hosts").network;
                world.judge.cut |= network.died;
                let due = network.due().is_some_and(|due| due <= now);
                let bell = if due { network.step(now) } else { None };
                if shown {
                    for (pid, text) in std::mem::take(&mut network.news) {
                        world.trace.note(now, pid, pid, text);
                    }
                }
                (due, bell)
            });
            if !due {
                break;
            }
            if let Some(bell) = bell {
                let one = 1u64;
                world::call(Sysno::write, &[bell as usize, (&raw const one) as usize, 8]);
            }
            if with(|world| world.takes(100)) {
                world::switch();
            }
        }
    }
}
