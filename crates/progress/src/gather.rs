//! Joins work requests. A thread that writes a stream posts bytes, the word that announces them,
//! and a stimulus, again and again. It is ahead of the progress thread as long as sending costs
//! more than copying. Requests that lie next to each other by then are sent in one write, with the
//! last word and one stimulus: all bytes are there before the word announces them, and sleepers are
//! woken after that. To the peer it looks as if the thread had written more at once.

use std::mem;
use std::ops::Range;

use fabric::Remote;
use fabric::outbox::WorkRequest;
use ofi::Link;
use sockets::layout;
use sockets::peering::wire::what;

/// The most bytes of one write: half of the ring that they go into, so that its reader has
/// something to do meanwhile.
const MOST: usize = layout::BIG / 2;

/// A remote segment that can send bytes from its shadow.
pub trait Shadowed: Remote {
    fn put_shadowed(&self, offset: usize, len: usize);
}

impl Shadowed for Link {
    fn put_shadowed(&self, offset: usize, len: usize) {
        Link::put_shadowed(self, offset, len);
    }
}

/// The requests gathered so far: bytes that lie together, the word behind them, and the stimulus
/// behind that.
#[derive(Debug, Default)]
pub struct Gathered {
    bytes: Range<usize>,
    word: Option<(usize, u64)>,
    stimulus: Option<(usize, u64)>,
}

impl Gathered {
    /// Takes the next work request. If it cannot be joined to what was gathered, that is sent
    /// first. Returns the request if nothing is to be joined with it.
    pub fn next(&mut self, request: WorkRequest, peer: &impl Shadowed) -> Option<WorkRequest> {
        if self.takes(&request) {
            return None;
        }
        self.go(peer);
        (!self.takes(&request)).then_some(request)
    }

    /// Whether the work request can be joined to those gathered.
    fn takes(&mut self, request: &WorkRequest) -> bool {
        let (at, value) = (request.at as usize, request.value);
        let same = |other: Option<(usize, u64)>| other.is_none_or(|(before, _)| before == at);
        match request.what {
            what::BYTES if self.bytes.is_empty() => self.bytes = at..at + value as usize,
            what::BYTES if self.bytes.end == at && self.bytes.len() + value as usize <= MOST => {
                self.bytes.end += value as usize;
            }
            what::WORD if !self.bytes.is_empty() && same(self.word) => self.word = Some((at, value)),
            what::STIMULATE if self.word.is_some() && same(self.stimulus) => {
                let interest = self.stimulus.map_or(0, |(_, interest)| interest);
                self.stimulus = Some((at, interest | value));
            }
            _ => return false,
        }
        true
    }

    /// Sends what was gathered.
    pub fn go(&mut self, peer: &impl Shadowed) {
        let bytes = mem::take(&mut self.bytes);
        if !bytes.is_empty() {
            peer.put_shadowed(bytes.start, bytes.len());
        }
        if let Some((at, value)) = self.word.take() {
            peer.put_word(at, value);
        }
        if let Some((at, interest)) = self.stimulus.take() {
            peer.stimulate(at, interest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// The operations that are carried out, in order.
    #[derive(Debug, PartialEq, Eq, Clone, Copy)]
    enum Done {
        Bytes(usize, usize),
        Word(usize, u64),
        Stimulus(usize, u64),
        Other,
    }
    use Done::{Bytes, Other, Stimulus, Word};

    #[derive(Default)]
    struct Recorded(RefCell<Vec<Done>>);

    impl Shadowed for Recorded {
        fn put_shadowed(&self, offset: usize, len: usize) {
            self.0.borrow_mut().push(Bytes(offset, len));
        }
    }

    impl Remote for Recorded {
        unsafe fn put(&self, _offset: usize, _from: *const u8, _len: usize) {
            unreachable!("bytes lie in the shadow");
        }
        fn put_word(&self, offset: usize, value: u64) {
            self.0.borrow_mut().push(Word(offset, value));
        }
        fn stimulate(&self, offset: usize, interest: u64) -> u64 {
            self.0.borrow_mut().push(Stimulus(offset, interest));
            0
        }
        fn armed(&self, _offset: usize, _interest: u64) -> bool {
            true
        }
        fn or_word(&self, _offset: usize, _bits: u64) -> u64 {
            0
        }
    }

    fn gathered(posted: &[Done]) -> Vec<Done> {
        let (recorded, mut gathered) = (Recorded::default(), Gathered::default());
        for done in posted {
            let (what, at, value) = match *done {
                Bytes(at, len) => (what::BYTES, at, len as u64),
                Word(at, value) => (what::WORD, at, value),
                Stimulus(at, interest) => (what::STIMULATE, at, interest),
                Other => (what::CALL, 0, 0),
            };
            let request = WorkRequest { what, at: at as u64, value };
            if gathered.next(request, &recorded).is_some() {
                recorded.0.borrow_mut().push(*done);
            }
        }
        gathered.go(&recorded);
        recorded.0.into_inner()
    }

    const W: usize = 0;
    const TRIP: usize = 128;

    #[test]
    fn a_stream_goes_as_if_more_had_been_written_at_once() {
        let posted = [
            Bytes(4096, 100),
            Word(W, 100),
            Stimulus(TRIP, 1),
            Bytes(4196, 50),
            Word(W, 150),
            Bytes(4246, 1),
            Word(W, 151),
            Stimulus(TRIP, 2),
        ];
        assert_eq!(gathered(&posted), [Bytes(4096, 151), Word(W, 151), Stimulus(TRIP, 3)]);
    }

    #[test]
    fn what_does_not_go_together_keeps_its_order() {
        // The ring begins anew; another word; another tripwire; a word, or a stimulus, without
        // bytes; bytes of another connection that lie behind these.
        for posted in [
            &[Bytes(8000, 192), Bytes(4096, 8), Word(W, 200)][..],
            &[Bytes(4096, 8), Word(W, 8), Word(64, 9), Word(W, 10)],
            &[Bytes(4096, 8), Word(W, 8), Stimulus(TRIP, 1), Stimulus(TRIP + 256, 1)],
            &[Word(W, 8), Word(W, 9), Stimulus(TRIP, 1), Bytes(4096, 8)],
            &[Bytes(4096, 8), Stimulus(TRIP, 1), Word(W, 8)],
            &[Bytes(4096, 8), Word(W, 8), Other, Bytes(4104, 8), Word(W, 16)],
        ] {
            assert_eq!(gathered(posted), posted);
        }
        let two = [Bytes(4096, 8), Word(W, 8), Bytes(4104, 4), Word(256, 4)];
        assert_eq!(gathered(&two), [Bytes(4096, 12), Word(W, 8), Word(256, 4)]);
    }

    #[test]
    fn half_a_ring_goes_at_once_at_most() {
        let posted: Vec<Done> =
            (0..5).flat_map(|n| [Bytes(4096 + n * MOST / 4, MOST / 4), Word(W, n as u64)]).collect();
        let wanted = [Bytes(4096, MOST), Word(W, 3), Bytes(4096 + MOST, MOST / 4), Word(W, 4)];
        assert_eq!(gathered(&posted), wanted);
        let long = [Bytes(4096, MOST + 1), Word(W, 1)];
        assert_eq!(gathered(&long), long);
    }
}
