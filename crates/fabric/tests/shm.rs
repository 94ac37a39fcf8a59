//! The provider for one host on real memory, between real processes: descriptors that a peer may
//! pass, a message queue under load, and a lock whose owner was killed. Loom checks the orderings
//! (`loom_*.rs`); this shows that the parts work where they will run. Under Miri only the queue
//! runs, over plain memory.
#![cfg(not(loom))]

mod plain;

use fabric::Local as _;
use fabric::frames::{self, Next};
use fabric::queue::{BYTES, Consumer, MESSAGE, Producer};
use plain::Plain;
use proptest::prelude::*;
use std::collections::VecDeque;

const BACK: usize = BYTES;

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 200 }, failure_persistence: None, ..Default::default() })]

    /// Frames of any length are received unchanged and in order, however the two ends take turns. A
    /// frame that is not published is not seen.
    #[test]
    fn a_queue_of_frames_is_a_queue(runs in prop::collection::vec((0..3u8, 0..600usize), 1..200)) {
        const SIZE: usize = 2048;
        let memory = Plain::new(frames::bytes(SIZE) + 8);
        let back = frames::bytes(SIZE);
        let (mut producer, mut consumer) = (frames::Producer::new(SIZE), frames::Consumer::new(SIZE));
        let (mut model, mut seen, mut count) = (VecDeque::new(), 0, 0u8);
        for (what, len) in runs {
            match what {
                0 => {
                    count = count.wrapping_add(1);
                    let frame = vec![count; len];
                    let (a, b) = frame.split_at(len / 3);
                    let put = producer.put(&memory, 0, &memory, back, &[a, b]);
                    // At the worst the rest of the buffer is too short for it.
                    prop_assert!(put || producer.waiting() + 2 * (len + 128) > SIZE);
                    if put {
                        model.push_back(frame);
                    }
                }
                1 => {
                    prop_assert_eq!(producer.publish(&memory, 0), model.len() > seen);
                    seen = model.len();
                }
                _ => match consumer.next(&memory, 0) {
                    Next::Empty => prop_assert_eq!(seen, 0),
                    Next::Broken => prop_assert!(false),
                    Next::Frame { offset, len } => {
                        prop_assert!(seen > 0);
                        let mut frame = vec![0; len];
                        // SAFETY: the target has that length.
                        unsafe { memory.get(offset, frame.as_mut_ptr(), len) };
                        prop_assert_eq!(Some(frame), model.pop_front());
                        seen -= 1;
                        consumer.done(&memory, back, len);
                    }
                },
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 200 }, failure_persistence: None, ..Default::default() })]

    /// Any sequence of pushes and pops has the results of a bounded queue.
    #[test]
    fn a_queue_is_a_queue(runs in prop::collection::vec((any::<bool>(), 1..300usize), 1..20)) {
        let memory = Plain::new(BYTES + 8);
        let (mut producer, mut consumer, mut model) = (Producer::default(), Consumer::default(), VecDeque::new());
        let mut count = 0u64;
        for (push, times) in runs {
            for _ in 0..times {
                if push {
                    let message = message(count);
                    let pushed = producer.push(&memory, 0, &memory, BACK, &message);
                    prop_assert_eq!(pushed, model.len() < 256);
                    if pushed {
                        model.push_back(message);
                        count += 1;
                    }
                } else {
                    prop_assert_eq!(consumer.ready(&memory, 0), !model.is_empty());
                    prop_assert_eq!(consumer.pop(&memory, 0, &memory, BACK), model.pop_front());
                }
            }
        }
    }
}

#[test]
fn messages_pass_between_threads() {
    let memory = Plain::new(BYTES + 8);
    let total = if cfg!(miri) { 400 } else { 300_000 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut producer = Producer::default();
            for count in 0..total {
                while !producer.push(&memory, 0, &memory, BACK, &message(count)) {
                    std::thread::yield_now();
                }
            }
        });
        let mut consumer = Consumer::default();
        for count in 0..total {
            let got = loop {
                match consumer.pop(&memory, 0, &memory, BACK) {
                    Some(got) => break got,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(got, message(count));
        }
    });
}

fn message(count: u64) -> [u8; MESSAGE] {
    let mut message = [count as u8; MESSAGE];
    message[..8].copy_from_slice(&count.to_ne_bytes());
    message
}

#[cfg(not(miri))]
mod processes {
    use fabric::lock::Lock;
    use fabric::shm::Map;
    use fabric::{Local, Remote, sys};

    #[test]
    fn only_a_sealed_file_of_the_right_size_and_of_ordinary_pages_is_mapped() {
        let (map, fd) = Map::create(c"test", 8192).unwrap();
        map.set_word(8, 7);
        let again = Map::open(fd, 8192).unwrap();
        assert_eq!(again.word(8), 7);
        assert!(Map::open(fd, 4096).is_err(), "wrong size");
        assert!(sys::ftruncate(fd, 0).is_err(), "sealed");
        let unsealed = sys::memfd_create(c"test").unwrap();
        sys::ftruncate(unsealed, 8192).unwrap();
        assert!(Map::open(unsealed, 8192).is_err(), "not sealed");
        let flags = libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
        // SAFETY: the name is a C string.
        let huge = unsafe { libc::memfd_create(c"test".as_ptr(), flags) };
        if huge >= 0 {
            sys::ftruncate(huge, 2 << 20).unwrap();
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
            sys::fcntl(huge, libc::F_ADD_SEALS, seals as usize).unwrap();
            assert!(Map::open(huge, 2 << 20).is_err(), "huge pages may be missing when touched");
            sys::close(huge);
        }
        sys::close(fd);
        sys::close(unsealed);
        // SAFETY: neither is used below.
        unsafe {
            map.unmap();
            again.unmap();
        }
    }

    #[test]
    fn a_lock_is_taken_over_from_a_killed_process_that_nobody_reaped() {
        let (map, fd) = Map::create(c"test", 4096).unwrap();
        // SAFETY: the map is aligned and stays for the whole test; zeroes are an unlocked lock.
        let lock = unsafe { &*map.base().cast::<Lock>() };
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let _ = lock.lock(sys::gettid());
            map.put_word(64, 1);
            loop {
                // SAFETY: a plain call.
                unsafe { libc::pause() };
            }
        }
        while map.word(64) == 0 {
            std::thread::yield_now();
        }
        assert!(sys::thread_lives(child as u32));
        assert!(!lock.try_lock(sys::gettid()), "its owner lives");
        // SAFETY: our own child, not reaped yet.
        unsafe { libc::kill(child, libc::SIGKILL) };
        let began = std::time::Instant::now();
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(lock.lock(sys::gettid())));
        assert_eq!(wait.recv_timeout(std::time::Duration::from_secs(5)), Ok(true), "{:?}", began.elapsed());
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        assert!(!sys::thread_lives(child as u32));
        sys::close(fd);
    }
}
