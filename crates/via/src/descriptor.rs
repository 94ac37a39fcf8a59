//! Descriptors that a program has posted. The program's data is read once, by value, and checked;
//! later changes, which the program must not make, have no effect. Results are written at the end,
//! the status last.

use crate::abi::{ControlSegment, DESCRIPTOR_ALIGNMENT, Descriptor, Segment, control, status};
use crate::limits::{MAX_SEGMENTS, MAX_TRANSFER};
use crate::memory::{Asker, Region, Regions};

/// Segments that are kept in place; those of longer descriptors lie elsewhere.
const FEW: usize = 2;

/// The operation of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// To receive, into its buffers.
    Receive,
    /// To send the contents of its buffers.
    Send,
    /// To write to the peer's memory.
    Write(Remote),
    /// To read from the peer's memory.
    Read(Remote),
}

/// A place in the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Address there.
    pub address: u64,
    /// Region there.
    pub handle: u32,
}

/// A descriptor that the library has.
pub struct Posted {
    /// Where it is.
    descriptor: *mut Descriptor,
    /// The region that it lies in.
    region: u32,
    /// Whether its memory is held.
    held: bool,
    /// Its mistakes ([`status`] bits), found when it was posted, or the outcome of its operation.
    pub errors: u32,
    /// Its operation.
    pub operation: Operation,
    /// Bytes of its buffers together. For one that receives, those that lie in their regions.
    pub length: usize,
    /// For one that receives: bytes according to its segments.
    claimed: usize,
    /// Four bytes for the peer, of a send or a write.
    pub immediate: Option<u32>,
    /// To begin only when all earlier reads are done.
    pub fence: bool,
    count: u8,
    few: [Segment; FEW],
    more: Option<Box<[Segment; MAX_SEGMENTS]>>,
}

// SAFETY: the pointer is the program's, which has given it to the library until it is done.
unsafe impl Send for Posted {}

/// A descriptor that was not taken at all: not even its status can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unusable;

impl Posted {
    /// Reads a descriptor, for the receive queue (`receives`) or the send queue. Its own memory and
    /// that of its buffers is checked, and held if it receives. The others are mostly done at once;
    /// those that are not are held by [`Posted::hold`]. [`Unusable`] if it is not aligned, or does
    /// not lie in region `region`.
    ///
    /// # Safety
    /// Registered memory must be mapped: memory that lies in a region by `regions` is read.
    #[inline(always)]
    pub unsafe fn read(
        regions: &Regions,
        asker: Asker,
        descriptor: *mut Descriptor,
        region: u32,
        receives: bool,
        most: usize,
    ) -> Result<Posted, Unusable> {
        let address = descriptor.addr();
        if !address.is_multiple_of(DESCRIPTOR_ALIGNMENT) {
            return Err(Unusable);
        }
        let home = if receives { regions.hold(asker, region) } else { regions.find(asker, region) };
        let Some(home) = home else { return Err(Unusable) };
        if !home.covers(address as u64, size_of::<ControlSegment>()) {
            if receives {
                regions.release(region);
            }
            return Err(Unusable);
        }
        // SAFETY: it lies in a registered region, which the caller vouches for, and is aligned.
        let head = unsafe { descriptor.cast::<ControlSegment>().read_volatile() };
        let mut posted = Posted {
            descriptor,
            region,
            held: receives,
            errors: 0,
            operation: if receives { Operation::Receive } else { Operation::Send },
            length: 0,
            claimed: 0,
            immediate: (head.control & control::IMMEDIATE != 0 && !receives).then_some(head.immediate),
            fence: head.control & control::QFENCE != 0,
            count: 0,
            few: [Segment::default(); FEW],
            more: None,
        };
        let count = usize::from(head.seg_count);
        let behind = address + size_of::<ControlSegment>();
        let op = head.control & control::OP_MASK;
        let remote = op == control::OP_RDMAWRITE || op == control::OP_RDMAREAD;
        if head.reserved != 0
            || head.control & control::RESERVED != 0
            || op == control::OP_RESERVED
            || receives && op != control::OP_SENDRECV
            || count > MAX_SEGMENTS
            || remote && count == 0
            || op == control::OP_RDMAREAD && posted.immediate.is_some()
        {
            posted.errors = status::FORMAT_ERROR;
            return Ok(posted);
        }
        if !home.covers(behind as u64, count * size_of::<Segment>()) {
            posted.errors = status::PROTECTION_ERROR;
            return Ok(posted);
        }
        let segment_at = |index: usize| {
            // SAFETY: `covers` has said that all of them lie in the region.
            unsafe { (behind as *const Segment).add(index).read_volatile() }
        };
        if remote {
            let target = segment_at(0);
            if target.length != 0 {
                posted.errors = status::FORMAT_ERROR;
                return Ok(posted);
            }
            let to = Remote { address: target.address, handle: target.handle };
            posted.operation =
                if op == control::OP_RDMAWRITE { Operation::Write(to) } else { Operation::Read(to) };
        }
        posted.take_segments(regions, asker, home, usize::from(remote)..count, segment_at);
        if posted.errors == 0 && !receives {
            // The buffers for a message may be longer than one message can be.
            if posted.length != head.length as usize || posted.length > most.min(MAX_TRANSFER) {
                posted.errors = status::LENGTH_ERROR;
            }
        }
        Ok(posted)
    }

    #[inline(always)]
    fn take_segments(
        &mut self,
        regions: &Regions,
        asker: Asker,
        home: Region,
        range: core::ops::Range<usize>,
        segment_at: impl Fn(usize) -> Segment,
    ) {
        if range.len() > FEW {
            self.more = Some(Box::new([Segment::default(); MAX_SEGMENTS]));
        }
        for mut segment in range.map(segment_at) {
            let mut length = segment.length as usize;
            self.claimed += length;
            if self.length < self.claimed - length {
                // Nothing is ever placed behind a buffer that ends beyond its region.
                continue;
            }
            // Most lie in the descriptor's own region, which is held already, and may be accessed.
            let may = if segment.handle == self.region {
                self.within(home, &segment)
            } else {
                self.may_touch(regions, asker, &segment)
            };
            let Some(may) = may else {
                self.errors = status::PROTECTION_ERROR;
                return;
            };
            if may < length {
                (length, segment.length) = (may, may as u32);
            }
            let at = usize::from(self.count);
            match &mut self.more {
                Some(more) => more[at] = segment,
                None => self.few[at] = segment,
            }
            self.count += 1;
            self.length += length;
        }
    }

    /// How many bytes of a buffer may be accessed: all, or the buffer is refused. A buffer to
    /// receive into must begin in its region. The part beyond the region's end is checked when
    /// there are bytes for it, as adapters do: a short message does not reach it.
    #[inline(always)]
    fn within(&self, region: Region, segment: &Segment) -> Option<usize> {
        let length = segment.length as usize;
        if region.covers(segment.address, length) {
            return Some(length);
        }
        if self.operation == Operation::Receive { region.behind(segment.address) } else { None }
    }

    /// As [`Posted::within`], for a buffer in another region. That region is held, too, if the
    /// descriptor's is.
    #[inline(never)]
    fn may_touch(&self, regions: &Regions, asker: Asker, segment: &Segment) -> Option<usize> {
        let handle = segment.handle;
        let found = if self.held { regions.hold(asker, handle) } else { regions.find(asker, handle) };
        let may = found.and_then(|region| self.within(region, segment));
        if self.held && found.is_some() && may.is_none() {
            regions.release(handle);
        }
        may
    }

    /// A message has come that does not fit: it is longer than the buffers, or would go beyond the
    /// end of a region.
    pub fn does_not_fit(&mut self, message: usize) {
        let beyond = message <= self.claimed;
        self.errors |= if beyond { status::PROTECTION_ERROR } else { status::LENGTH_ERROR };
    }

    /// Its buffers.
    #[inline]
    pub fn segments(&self) -> &[Segment] {
        match &self.more {
            Some(more) => &more[..usize::from(self.count)],
            None => &self.few[..usize::from(self.count)],
        }
    }

    /// A list of its buffers that stays where it is as long as the descriptor is posted.
    pub fn list(&mut self) -> *const Segment {
        let few = self.few;
        self.more
            .get_or_insert_with(|| {
                let mut more = Box::new([Segment::default(); MAX_SEGMENTS]);
                more[..FEW].copy_from_slice(&few);
                more
            })
            .as_ptr()
    }

    /// The descriptor's address.
    pub fn descriptor(&self) -> *mut Descriptor {
        self.descriptor
    }

    /// Writes the outcome into the descriptor, and gives back the memory that was held. `op` is one
    /// of [`status`], `immediate` came with a message. The status is written last: programs poll
    /// it.
    #[inline(always)]
    pub fn complete(&mut self, regions: &Regions, op: u32, length: usize, immediate: Option<u32>) {
        let head = self.descriptor.cast::<ControlSegment>();
        let told = if immediate.is_some() { status::IMMEDIATE } else { 0 };
        // SAFETY: it lies in a region that is held; programs must not touch it now, and if they do,
        // these are plain words.
        unsafe {
            (&raw mut (*head).length).write_volatile(length as u32);
            if let Some(immediate) = immediate {
                (&raw mut (*head).immediate).write_volatile(immediate);
            }
            let word = &raw mut (*head).status;
            fabric::sync::AtomicU32::from_ptr(word)
                .store(status::DONE | op | told | self.errors, fabric::sync::Ordering::Release);
        }
        self.let_go(regions);
    }

    /// Holds its memory: it is not done before the program's call returns. If the program has
    /// deregistered the memory meanwhile, an error is noted.
    pub fn hold(&mut self, regions: &Regions, asker: Asker) {
        let home = regions.hold(asker, self.region);
        self.held = home.is_some();
        let count = usize::from(core::mem::take(&mut self.count));
        let (few, more) = (self.few, self.more.take());
        let segment_at = |index: usize| more.as_ref().map_or_else(|| few[index], |more| more[index]);
        (self.length, self.claimed) = (0, 0);
        match home {
            Some(home) => self.take_segments(regions, asker, home, 0..count, segment_at),
            None => self.errors |= status::PROTECTION_ERROR,
        }
    }

    /// Gives back the memory that is held, whatever the outcome.
    #[inline]
    pub fn let_go(&mut self, regions: &Regions) {
        if !core::mem::take(&mut self.held) {
            return;
        }
        for segment in self.segments() {
            if segment.handle != self.region {
                regions.release(segment.handle);
            }
        }
        regions.release(self.region);
    }

    /// Whether the peer must be woken when it is done.
    pub fn tells_the_peer(&self) -> bool {
        self.errors == 0
            && match self.operation {
                Operation::Send => true,
                Operation::Write(_) => self.immediate.is_some(),
                Operation::Read(_) | Operation::Receive => false,
            }
    }

    /// The kind of its result.
    pub fn op(&self) -> u32 {
        match self.operation {
            Operation::Receive => status::OP_RECEIVE,
            Operation::Send => status::OP_SEND,
            Operation::Write(_) => status::OP_RDMA_WRITE,
            Operation::Read(_) => status::OP_RDMA_READ,
        }
    }
}
