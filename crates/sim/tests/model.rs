//! What the comparison with the real kernel leaves out, as its programs never sleep: calls that
//! wait, delays, full buffers, memory, processes.

use sim::kernel::{Kernel, Outcome, Tid};
use syscalls::{Errno, Sysno};

const NANOS: u64 = 1_000_000_000;

fn done(outcome: Outcome) -> Result<usize, Errno> {
    match outcome {
        Outcome::Done(result) => result,
        Outcome::Sleep => panic!("it sleeps"),
    }
}

/// A kernel with processes 1 and 2, which have a thread each.
fn kernel(seed: u64) -> Kernel {
    let mut kernel = Kernel::new(seed);
    for pid in [1, 2] {
        kernel.spawn(pid, 1000);
        kernel.thread(pid, pid);
    }
    kernel
}

fn call(kernel: &mut Kernel, tid: Tid, number: Sysno, args: &[usize]) -> Outcome {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    kernel.call(tid, number, all)
}

fn address(port: [u8; 2]) -> [u8; 16] {
    let mut address = [0; 16];
    (address[0], address[2], address[3]) = (libc::AF_INET as u8, port[0], port[1]);
    address[4..8].copy_from_slice(&[127, 0, 0, 1]);
    address
}

/// A connection from thread 1 to thread 2: its descriptors. Both wait, where they have to.
fn connection(kernel: &mut Kernel) -> (usize, usize) {
    let new = [libc::AF_INET as usize, libc::SOCK_STREAM as usize];
    let listener = done(call(kernel, 2, Sysno::socket, &new)).unwrap();
    let client = done(call(kernel, 1, Sysno::socket, &new)).unwrap();
    let place = address([100, 1]);
    let at = place.as_ptr() as usize;
    done(call(kernel, 2, Sysno::bind, &[listener, at, 16])).unwrap();
    done(call(kernel, 2, Sysno::listen, &[listener, 8])).unwrap();
    let calls = [(1, Sysno::connect, vec![client, at, 16]), (2, Sysno::accept, vec![listener, 0, 0])];
    let mut ends = [None; 2];
    while ends.contains(&None) {
        for (end, (tid, number, args)) in ends.iter_mut().zip(&calls) {
            if end.is_none()
                && let Outcome::Done(result) = call(kernel, *tid, *number, args)
            {
                *end = Some(result.unwrap());
            }
        }
        wait(kernel);
    }
    (client, ends[1].unwrap())
}

/// Lets time pass until somebody may go on.
fn wait(kernel: &mut Kernel) {
    let next = [1, 2].into_iter().filter_map(|tid| kernel.deadline(tid)).min();
    kernel.now = kernel.now.max(next.unwrap_or(0));
}

/// Sends so much from thread 1 to thread 2, in blocking calls of these sizes, and compares every
/// byte.
fn stream(kernel: &mut Kernel, total: usize, writes: usize, reads: usize, flags: usize) {
    let (client, server) = connection(kernel);
    let bytes: Vec<u8> = (0..total).map(|at| (at * 7 + at / 251) as u8).collect();
    let (mut sent, mut got, mut idle) = (0, Vec::<u8>::new(), 0);
    let mut buffer = vec![0u8; reads];
    while got.len() < total {
        let before = (sent, got.len());
        if sent < total {
            let part = writes.min(total - sent);
            let args = [client, bytes[sent..].as_ptr() as usize, part, 0, 0, 0];
            if let Outcome::Done(result) = kernel.call(1, Sysno::sendto, args) {
                assert_eq!(result, Ok(part), "a blocking call sends all");
                sent += part;
            }
        }
        let part = reads.min(total - got.len());
        let args = [server, buffer.as_mut_ptr() as usize, part, flags, 0, 0];
        if let Outcome::Done(result) = kernel.call(2, Sysno::recvfrom, args) {
            let count = result.unwrap();
            assert!(count > 0 && (flags == 0 || count == part));
            got.extend(&buffer[..count]);
        }
        wait(kernel);
        idle = if before == (sent, got.len()) { idle + 1 } else { 0 };
        assert!(idle < 10_000, "nobody goes on: {sent} bytes sent, {} received", got.len());
    }
    assert!(got == bytes);
}

#[test]
fn bytes_arrive_in_order_whatever_the_delays_and_buffers() {
    for seed in 0..60 {
        let mut kernel = kernel(seed);
        kernel.limits.delay = [0, 1000, 1_000_000][seed as usize % 3];
        kernel.limits.partial = seed % 2 == 1;
        kernel.limits.sndbuf = [5000, 1 << 16][seed as usize / 3 % 2];
        kernel.limits.rcvbuf = [5000, 1 << 16][seed as usize / 6 % 2];
        let all = if seed % 5 == 0 { libc::MSG_WAITALL as usize } else { 0 };
        stream(&mut kernel, 200_000, [1, 777, 50_000][seed as usize / 4 % 3].max(100), 3000, all);
        assert_eq!(kernel.unknown(), []);
    }
}

#[test]
fn runs_with_the_same_seed_are_the_same() {
    let run = || {
        let mut kernel = kernel(5);
        (kernel.limits.delay, kernel.limits.partial) = (100_000, true);
        stream(&mut kernel, 50_000, 999, 1000, 0);
        (kernel.now, kernel.changes())
    };
    assert_eq!(run(), run());
}

#[test]
fn timeouts_end_calls_and_interrupts_give_what_was_moved() {
    let mut kernel = kernel(1);
    let (client, server) = connection(&mut kernel);
    let timeout = [0u64, 500_000];
    let option =
        [server, libc::SOL_SOCKET as usize, libc::SO_RCVTIMEO as usize, timeout.as_ptr() as usize, 16];
    assert_eq!(done(call(&mut kernel, 2, Sysno::setsockopt, &option)), Ok(0));
    let mut buffer = [0u8; 8];
    let receive = [server, buffer.as_mut_ptr() as usize, 8, libc::MSG_WAITALL as usize, 0, 0];
    let begun = kernel.now;
    assert_eq!(kernel.call(2, Sysno::recvfrom, receive), Outcome::Sleep);
    assert_eq!(kernel.deadline(2), Some(begun + NANOS / 2));
    kernel.now = begun + NANOS / 2 - 1;
    assert_eq!(kernel.call(2, Sysno::recvfrom, receive), Outcome::Sleep);
    kernel.now += 1;
    assert_eq!(kernel.call(2, Sysno::recvfrom, receive), Outcome::Done(Err(Errno::EAGAIN)));
    assert_eq!(kernel.deadline(2), None);
    let bytes = [7u8; 3];
    let send = [client, bytes.as_ptr() as usize, 3, 0, 0, 0];
    assert_eq!(kernel.call(2, Sysno::recvfrom, receive), Outcome::Sleep);
    assert_eq!(kernel.call(1, Sysno::sendto, send), Outcome::Done(Ok(3)));
    assert_eq!(kernel.call(2, Sysno::recvfrom, receive), Outcome::Sleep);
    assert_eq!(kernel.interrupt(2), Ok(3));
    assert_eq!(kernel.call(2, Sysno::recvfrom, receive), Outcome::Sleep);
    assert_eq!(kernel.interrupt(2), Err(Errno::EINTR));
}

#[test]
fn a_call_keeps_the_file_that_it_sleeps_on() {
    let mut kernel = kernel(1);
    kernel.thread(2, 3);
    let (client, server) = connection(&mut kernel);
    let mut buffer = [0u8; 8];
    let receive = [server, buffer.as_mut_ptr() as usize, 8, 0, 0, 0];
    assert_eq!(kernel.call(2, Sysno::recvfrom, receive), Outcome::Sleep);
    assert_eq!(done(call(&mut kernel, 3, Sysno::close, &[server])), Ok(0));
    let send = [client, buffer.as_ptr() as usize, 5, 0, 0, 0];
    assert_eq!(kernel.call(1, Sysno::sendto, send), Outcome::Done(Ok(5)));
    assert_eq!(kernel.call(2, Sysno::recvfrom, receive), Outcome::Done(Ok(5)));
    assert_eq!(kernel.call(2, Sysno::recvfrom, receive), Outcome::Done(Err(Errno::EBADF)));
    assert_eq!(kernel.call(1, Sysno::recvfrom, [client, receive[1], 8, 0, 0, 0]), Outcome::Done(Ok(0)));
}

#[test]
fn a_killed_process_closes_what_it_had() {
    let mut kernel = kernel(1);
    let (client, server) = connection(&mut kernel);
    kernel.fork(2, 4);
    kernel.thread(4, 4);
    kernel.end(2);
    let mut buffer = [0u8; 8];
    let at = buffer.as_mut_ptr() as usize;
    let receive = [client, at, 8, libc::MSG_DONTWAIT as usize, 0, 0];
    assert_eq!(
        kernel.call(1, Sysno::recvfrom, receive),
        Outcome::Done(Err(Errno::EAGAIN)),
        "the child has it"
    );
    let send = [client, at, 5, 0, 0, 0];
    assert_eq!(kernel.call(1, Sysno::sendto, send), Outcome::Done(Ok(5)));
    assert_eq!(kernel.call(4, Sysno::recvfrom, [server, at, 2, 0, 0, 0]), Outcome::Done(Ok(2)));
    kernel.end(4);
    assert_eq!(
        kernel.call(1, Sysno::recvfrom, receive),
        Outcome::Done(Err(Errno::ECONNRESET)),
        "it had not read all"
    );
    assert_eq!(kernel.call(1, Sysno::kill, [2, 0, 0, 0, 0, 0]), Outcome::Done(Err(Errno::ESRCH)));
}

#[test]
fn futexes_meet_in_a_memfd_wherever_it_is_mapped() {
    let mut kernel = kernel(1);
    kernel.fork(1, 5);
    kernel.thread(5, 5);
    let name = c"x".as_ptr() as usize;
    let fd =
        done(call(&mut kernel, 1, Sysno::memfd_create, &[name, libc::MFD_ALLOW_SEALING as usize])).unwrap();
    assert_eq!(done(call(&mut kernel, 1, Sysno::ftruncate, &[fd, 1 << 20])), Ok(0));
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let map = |kernel: &mut Kernel, offset: usize| {
        let args = [0, 1 << 16, protection, libc::MAP_SHARED as usize, fd, offset];
        done(call(kernel, 1, Sysno::mmap, &args)).unwrap()
    };
    let (one, other) = (map(&mut kernel, 0), map(&mut kernel, 4096));
    assert_ne!(one, other);
    // SAFETY: mapped just now, for more bytes than that.
    unsafe { *((one + 4096) as *mut u32) = 9 };
    // SAFETY: as above; the same word, seen through the other mapping.
    assert_eq!(unsafe { *(other as *const u32) }, 9);
    let timeout = [1u64, 0];
    let wait = [one + 4096, libc::FUTEX_WAIT as usize, 9, timeout.as_ptr() as usize, 0, 0];
    assert_eq!(kernel.call(1, Sysno::futex, wait), Outcome::Sleep);
    assert_eq!(kernel.call(1, Sysno::futex, wait), Outcome::Sleep);
    assert_eq!(
        kernel.call(2, Sysno::futex, [other, libc::FUTEX_WAKE as usize, 1, 0, 0, 0]),
        Outcome::Done(Ok(1))
    );
    assert_eq!(
        kernel.call(2, Sysno::futex, [other, libc::FUTEX_WAKE as usize, 1, 0, 0, 0]),
        Outcome::Done(Ok(0))
    );
    assert_eq!(kernel.call(1, Sysno::futex, wait), Outcome::Done(Ok(0)));
    assert_eq!(kernel.call(1, Sysno::futex, wait), Outcome::Sleep);
    kernel.now += NANOS;
    assert_eq!(kernel.call(1, Sysno::futex, wait), Outcome::Done(Err(Errno::ETIMEDOUT)));
    let wrong = [one + 4096, libc::FUTEX_WAIT as usize, 8, 0, 0, 0];
    assert_eq!(kernel.call(1, Sysno::futex, wrong), Outcome::Done(Err(Errno::EAGAIN)));
    // Memory of one's own in the place of shared memory, as a process that renounces makes it.
    let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as usize;
    let args = [one, 1 << 16, protection, flags, usize::MAX, 0];
    assert_eq!(done(call(&mut kernel, 1, Sysno::mmap, &args)), Ok(one));
    // SAFETY: mapped just now.
    assert_eq!(unsafe { *((one + 4096) as *const u32) }, 0);
    // SAFETY: still mapped.
    assert_eq!(unsafe { *(other as *const u32) }, 9);
    assert_eq!(done(call(&mut kernel, 1, Sysno::munmap, &[one, 1 << 16])), Ok(0));
    let mut seen = [0u8; 16];
    let mincore = |kernel: &mut Kernel, at, seen: &mut [u8; 16]| {
        done(call(kernel, 1, Sysno::mincore, &[at, 1 << 16, seen.as_mut_ptr() as usize]))
    };
    assert_eq!(mincore(&mut kernel, one, &mut seen), Err(Errno::ENOMEM));
    assert_eq!(mincore(&mut kernel, other, &mut seen), Ok(0));
    assert_eq!(kernel.unknown(), []);
}

#[test]
fn one_sleeper_of_those_that_share_exclusively_is_woken() {
    let mut kernel = kernel(1);
    let event = done(call(&mut kernel, 1, Sysno::eventfd2, &[0, libc::EFD_NONBLOCK as usize])).unwrap();
    kernel.thread(1, 8);
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
    let at = events.as_mut_ptr() as usize;
    let sets: Vec<usize> = (0..2)
        .map(|_| {
            let set = done(call(&mut kernel, 1, Sysno::epoll_create1, &[0])).unwrap();
            let wanted = (libc::EPOLLIN | libc::EPOLLEXCLUSIVE | libc::EPOLLET) as u32;
            let asked = libc::epoll_event { events: wanted, u64: 3 };
            let args = [set, libc::EPOLL_CTL_ADD as usize, event, &raw const asked as usize];
            assert_eq!(done(call(&mut kernel, 1, Sysno::epoll_ctl, &args)), Ok(0));
            set
        })
        .collect();
    let waits = [(1, sets[0]), (8, sets[1])].map(|(tid, set)| (tid, [set, at, 2, usize::MAX, 0, 8]));
    for (tid, wait) in waits {
        assert_eq!(kernel.call(tid, Sysno::epoll_pwait, wait), Outcome::Sleep);
    }
    let one = 1u64;
    let write = [event, &raw const one as usize, 8, 0, 0, 0];
    assert_eq!(kernel.call(2, Sysno::write, write), Outcome::Done(Err(Errno::EBADF)));
    kernel.thread(1, 9);
    assert_eq!(kernel.call(9, Sysno::write, write), Outcome::Done(Ok(8)));
    let woken: Vec<Outcome> = waits.map(|(tid, wait)| kernel.call(tid, Sysno::epoll_pwait, wait)).to_vec();
    assert_eq!(woken.iter().filter(|&&outcome| outcome == Outcome::Done(Ok(1))).count(), 1);
    assert_eq!(kernel.call(9, Sysno::write, write), Outcome::Done(Ok(8)));
    assert_eq!(kernel.unknown(), []);
}

#[test]
fn a_blocking_message_waits_for_room() {
    let mut kernel = kernel(1);
    let kind = [libc::AF_UNIX as usize, libc::SOCK_DGRAM as usize, 0];
    let (bell, speaker) = (
        done(call(&mut kernel, 2, Sysno::socket, &kind)).unwrap(),
        done(call(&mut kernel, 1, Sysno::socket, &kind)).unwrap(),
    );
    let name = [1u8, 0, 0, b'b'];
    assert_eq!(done(call(&mut kernel, 2, Sysno::bind, &[bell, name.as_ptr() as usize, 4])), Ok(0));
    let send = [speaker, name.as_ptr() as usize, 4, 0, name.as_ptr() as usize, 4];
    let sent = (0..100).take_while(|_| kernel.call(1, Sysno::sendto, send) == Outcome::Done(Ok(4))).count();
    assert_eq!(sent, 11);
    let mut buffer = [0u8; 4];
    assert_eq!(
        kernel.call(2, Sysno::read, [bell, buffer.as_mut_ptr() as usize, 4, 0, 0, 0]),
        Outcome::Done(Ok(4))
    );
    assert_eq!(kernel.call(1, Sysno::sendto, send), Outcome::Done(Ok(4)));
}

#[test]
fn faults_are_asked_for_and_unknown_calls_counted() {
    let mut kernel = kernel(1);
    kernel.faults = Some(Box::new(|_, number| (number == Sysno::socket).then_some(Errno::EMFILE)));
    let new = [libc::AF_INET as usize, libc::SOCK_STREAM as usize];
    assert_eq!(done(call(&mut kernel, 1, Sysno::socket, &new)), Err(Errno::EMFILE));
    kernel.faults = None;
    assert!(done(call(&mut kernel, 1, Sysno::socket, &new)).is_ok());
    assert_eq!(done(call(&mut kernel, 1, Sysno::inotify_init1, &[0])), Err(Errno::ENOSYS));
    assert_eq!(kernel.unknown(), [("inotify_init1".to_owned(), 1)]);
}
