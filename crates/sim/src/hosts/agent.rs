//! The agents of both hosts, as one process of the simulation: who posts both ends of a connection
//! gets to know the other. They prove nothing to each other, and carry no data.

use cluster::client;
use cluster::wire::{FromAgent, Message, ToAgent};
use syscalls::Sysno;

use super::state::{Agents, Process};
use crate::world::{call, with};

/// What the agents do as long as there is anybody.
pub fn run() {
    let (address, len) = client::address(0);
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let listener = call(Sysno::socket, &[libc::AF_UNIX as usize, kind as usize, 0]) as usize;
    call(Sysno::bind, &[listener, (&raw const address) as usize, len as usize]);
    call(Sysno::listen, &[listener, 16]);
    loop {
        let known: Vec<i32> = on(|agents| agents.processes.keys().copied().collect());
        let fds = known.iter().copied().chain([listener as i32]);
        let mut fds: Vec<libc::pollfd> =
            fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        call(Sysno::poll, &[fds.as_mut_ptr() as usize, fds.len(), usize::MAX]);
        let flags = (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) as usize;
        let taken = call(Sysno::accept4, &[listener, 0, 0, flags]);
        if taken >= 0 {
            on(|agents| agents.processes.insert(taken as i32, Process::default()));
        }
        known.into_iter().chain((taken >= 0).then_some(taken as i32)).for_each(hear);
    }
}

fn on<R>(work: impl FnOnce(&mut Agents) -> R) -> R {
    with(|world| work(&mut world.hosts.as_mut().expect("a run with hosts").agents))
}

fn of<R>(fd: i32, work: impl FnOnce(&mut Process) -> R) -> Option<R> {
    on(|agents| agents.processes.get_mut(&fd).map(work))
}

fn hear(fd: i32) {
    let mut bytes = [0u8; cluster::wire::MOST];
    loop {
        let got = call(Sysno::recvfrom, &[fd as usize, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0]);
        if got == 0 || got < 0 && got != -(libc::EAGAIN as isize) {
            on(|agents| agents.processes.remove(&fd));
            call(Sysno::close, &[fd as usize]);
            return;
        }
        if got < 0 {
            return;
        }
        match ToAgent::parse(&bytes[..got as usize]) {
            Some(ToAgent::Enrol(reach)) => {
                of(fd, |process| process.reach = Some(reach));
                tell(fd, &FromAgent::Enrolled);
            }
            Some(ToAgent::Post { index, cookie, own, peer }) => {
                of(fd, |process| process.posted.insert(index, (cookie, own, peer)));
                introduce((fd, index));
            }
            Some(ToAgent::Withdraw { index, cookie }) => {
                of(fd, |process| process.posted.retain(|&at, posted| (at, posted.0) != (index, cookie)));
            }
            Some(ToAgent::Status) => {}
            None => with(|world| world.judge.fail(|| "the library sends an agent what is no message".into())),
        }
    }
}

/// If the other end has been posted, too, both get to know it.
fn introduce((fd, index): (i32, u32)) {
    let found = on(|agents| {
        let (cookie, own, peer) = *agents.processes.get(&fd)?.posted.get(&index)?;
        let other = agents.processes.iter().find_map(|(&other, process)| {
            let found = process.posted.iter().find(|(_, posted)| posted.1 == peer && posted.2 == own);
            found.map(|(&index, posted)| (other, index, posted.0))
        });
        agents.tickets += 1;
        Some((cookie, other?, [agents.tickets; 16]))
    });
    let Some((cookie, (other, other_index, other_cookie), ticket)) = found else { return };
    let mut told = [
        (fd, index, cookie, other, other_index, other_cookie),
        (other, other_index, other_cookie, fd, index, cookie),
    ];
    if with(|world| world.once_in(2)) {
        told.swap(0, 1);
    }
    for (to, index, cookie, of, peer_index, peer_cookie) in told {
        let Some(reach) = self::of(of, |process| process.reach.clone()).flatten() else { return };
        if with(|world| world.once_in(2)) {
            // The other host's agent takes its time.
            call(Sysno::poll, &[0, 0, 1]);
        }
        tell(to, &FromAgent::Introduced { index, cookie, reach, uid: 1000, peer_index, peer_cookie, ticket });
    }
}

fn tell(fd: i32, message: &FromAgent) {
    let bytes = message.bytes();
    call(
        Sysno::sendto,
        &[fd as usize, bytes.as_ptr() as usize, bytes.len(), libc::MSG_NOSIGNAL as usize, 0, 0],
    );
}
