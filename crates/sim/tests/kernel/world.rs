//! The two kernels that are compared: the real one, and the model.

use sim::kernel::{Kernel, Outcome};
use syscalls::{Errno, Sysno};

pub type Answer = Result<usize, Errno>;

/// A kernel to make calls to.
pub trait World {
    fn call(&mut self, number: Sysno, args: [usize; 6]) -> Answer;
    /// A step of the program begins.
    fn tick(&mut self) {}
}

/// The real one.
pub struct Real;

impl World for Real {
    fn call(&mut self, number: Sysno, args: [usize; 6]) -> Answer {
        // SAFETY: the programs here pass memory of their own, as long as the call asks, and
        // descriptors that they have made.
        unsafe { syscalls::syscall!(number, args[0], args[1], args[2], args[3], args[4], args[5]) }
    }
}

/// The model, with one process of one thread.
pub struct Model {
    pub kernel: Kernel,
    /// Nanoseconds that a step takes.
    pace: u64,
}

impl Model {
    pub fn new(seed: u64, uid: u32) -> Model {
        let mut kernel = Kernel::new(seed);
        let pid = std::process::id();
        kernel.spawn(pid, uid);
        kernel.thread(pid, pid);
        Model { kernel, pace: 0 }
    }

    /// One where segments take their time, and writes may be cut short.
    pub fn slow(seed: u64, uid: u32) -> Model {
        let mut model = Model::new(seed, uid);
        model.kernel.limits.delay = 1 + seed % 7 * 1000;
        model.kernel.limits.partial = seed % 2 == 1;
        model.pace = 500;
        model
    }
}

impl World for Model {
    fn tick(&mut self) {
        self.kernel.now += self.pace;
    }

    fn call(&mut self, number: Sysno, args: [usize; 6]) -> Answer {
        let tid = std::process::id();
        match self.kernel.call(tid, number, args) {
            Outcome::Done(result) => result,
            Outcome::Sleep => {
                self.kernel.cancel(tid);
                Err(Errno::ERESTART)
            }
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        assert_eq!(self.kernel.unknown(), [], "calls that the model does not know");
    }
}
