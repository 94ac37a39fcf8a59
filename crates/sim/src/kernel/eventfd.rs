//! eventfd(2).

use syscalls::Errno;

use super::objects::{Counter, Kind};
use super::state::{Kernel, Outcome, Tid, ready};
use super::user::Places;

impl Kernel {
    pub(super) fn eventfd(&mut self, tid: Tid, count: u64, flags: i32) -> Result<usize, Errno> {
        if flags & !(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK | libc::EFD_SEMAPHORE) != 0 {
            return Err(Errno::EINVAL);
        }
        let semaphore = flags & libc::EFD_SEMAPHORE != 0;
        let counter = Kind::Counter(Counter { count, semaphore });
        let kept = libc::O_RDWR | flags & libc::EFD_NONBLOCK;
        self.make(tid, kept, flags & libc::EFD_CLOEXEC != 0, |_| counter)
    }

    fn counter(&mut self, file: u64) -> &mut Counter {
        match &mut self.files[file].kind {
            Kind::Counter(counter) => counter,
            _ => unreachable!("asked of eventfds only"),
        }
    }

    pub(super) fn read_counter(&mut self, tid: Tid, file: u64, to: &Places, timeout: Option<u64>) -> Outcome {
        if to.len() < 8 {
            return Outcome::Done(Err(Errno::EINVAL));
        }
        let counter = self.counter(file);
        if counter.count == 0 {
            return self.block(tid, timeout, Errno::EAGAIN);
        }
        let taken = if counter.semaphore { 1 } else { counter.count };
        counter.count -= taken;
        self.wake(Some(file), ready::OUT);
        Outcome::Done(to.scatter(0, &taken.to_ne_bytes()))
    }

    pub(super) fn write_counter(
        &mut self,
        tid: Tid,
        file: u64,
        from: &Places,
        timeout: Option<u64>,
    ) -> Outcome {
        // Neither fewer bytes nor more (eventfd_write, since Linux 6.10).
        let bytes = match from.gather(0, 9) {
            Ok(bytes) if bytes.len() == 8 => bytes,
            Ok(_) => return Outcome::Done(Err(Errno::EINVAL)),
            Err(errno) => return Outcome::Done(Err(errno)),
        };
        let added = u64::from_ne_bytes(core::array::from_fn(|i| bytes[i]));
        if added == u64::MAX {
            return Outcome::Done(Err(Errno::EINVAL));
        }
        let counter = self.counter(file);
        if u64::MAX - counter.count <= added {
            return self.block(tid, timeout, Errno::EAGAIN);
        }
        counter.count += added;
        self.wake(Some(file), ready::IN);
        Outcome::Done(Ok(8))
    }
}
