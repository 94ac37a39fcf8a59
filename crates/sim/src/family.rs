//! Parent and child have their memory at the same addresses: whichever of them runs has its own
//! there, and that of the other is put aside.

use sim::kernel::{Kernel, Pid};

use crate::image::Image;

/// The processes that use one copy of the library: one, and what it has forked.
pub struct Family {
    image: &'static Image,
    /// Whose memory is there now.
    current: Pid,
    aside: Vec<(Pid, Memory)>,
}

/// What lies in the ranges that both have, page by page.
struct Memory {
    variables: Vec<u8>,
    ranges: Vec<(usize, usize)>,
    pages: Vec<(usize, Vec<u8>)>,
}

const PAGE: usize = 4096;

impl Family {
    pub fn new(image: &'static Image, first: Pid) -> Family {
        Family { image, current: first, aside: Vec::new() }
    }

    pub fn has(&self, pid: Pid) -> bool {
        self.current == pid || self.aside.iter().any(|(other, _)| *other == pid)
    }

    /// The process whose memory is there has forked.
    pub fn fork(&mut self, kernel: &Kernel, child: Pid) {
        self.aside.push((child, self.copy(kernel)));
    }

    /// The process whose memory is there has another image from now on.
    pub fn exec(&self) {
        self.image.reset();
    }

    /// A process runs: its memory comes to its place.
    pub fn switch(&mut self, kernel: &Kernel, pid: Pid) {
        if self.current == pid {
            return;
        }
        if kernel.lives(self.current) {
            let copy = self.copy(kernel);
            self.aside.push((self.current, copy));
        }
        let place = self.aside.iter().position(|(other, _)| *other == pid);
        let (_, memory) = self.aside.swap_remove(place.expect("one of the family"));
        self.current = pid;
        self.image.set_variables(&memory.variables);
        for (at, len) in memory.ranges {
            // SAFETY: private memory of the process, which no other thread uses now: its pages read
            // as zero then.
            unsafe { libc::madvise(at as *mut _, len, libc::MADV_DONTNEED) };
        }
        for (at, page) in memory.pages {
            // SAFETY: as above; a page is so long.
            unsafe { std::ptr::copy_nonoverlapping(page.as_ptr(), at as *mut u8, PAGE) };
        }
    }

    fn copy(&self, kernel: &Kernel) -> Memory {
        let ranges = kernel.shared_by_fork(self.current);
        let mut pages = Vec::new();
        for &(at, len) in &ranges {
            let mut there = vec![0u8; len.div_ceil(PAGE)];
            // SAFETY: the range is mapped, and there is a byte for each page.
            unsafe { libc::mincore(at as *mut _, len, there.as_mut_ptr()) };
            for (number, _) in there.iter().enumerate().filter(|(_, there)| **there & 1 != 0) {
                let from = at + number * PAGE;
                // SAFETY: a page of the range.
                pages.push((from, unsafe { std::slice::from_raw_parts(from as *const u8, PAGE) }.to_vec()));
            }
        }
        Memory { variables: self.image.variables(), ranges, pages }
    }
}
