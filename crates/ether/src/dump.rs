//! `shunt ether dump`: the frames of a daemon as they pass, for clients that ask. The threads that
//! carry frames never wait for a reader: frames that it does not take in time are lost for it, and
//! counted.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use fabric::sync::{AtomicBool, Ordering};

use crate::stats::Count;

/// Frames that wait for a reader.
const WAITING: usize = 1024;

/// A frame that passed.
#[derive(Debug)]
pub struct Passed {
    /// When, in nanoseconds since 1970.
    pub nanos: u64,
    /// The place of its net among those that are dumped.
    pub interface: u32,
    /// Whether it came from a peer.
    pub inbound: bool,
    /// The captured part of it.
    pub bytes: Vec<u8>,
    /// Its whole length.
    pub whole: usize,
}

#[derive(Debug)]
struct Reader {
    interface: u32,
    snap: usize,
    to: SyncSender<Passed>,
}

/// The readers of one net.
#[derive(Debug, Default)]
pub struct Readers {
    any: AtomicBool,
    list: Mutex<Vec<Reader>>,
    /// Frames that readers did not get.
    pub lost: Count,
}

/// A channel for a reader; frames of several nets come in one.
pub fn channel() -> (SyncSender<Passed>, Receiver<Passed>) {
    sync_channel(WAITING)
}

impl Readers {
    /// Adds a reader, which gets `snap` bytes of each frame. It leaves by dropping its end of the
    /// channel.
    pub fn add(&self, interface: u32, snap: usize, to: SyncSender<Passed>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(Reader { interface, snap, to });
        self.any.store(true, Ordering::Release);
    }

    /// Whether there is a reader.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Shows a frame, made of `parts`, to the readers.
    #[inline(always)]
    pub fn show(&self, inbound: bool, parts: &[&[u8]]) {
        if self.any() {
            self.pass(inbound, parts);
        }
    }

    #[cold]
    fn pass(&self, inbound: bool, parts: &[&[u8]]) {
        use std::sync::mpsc::TrySendError::{Disconnected, Full};
        let whole = parts.iter().map(|part| part.len()).sum();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|reader| {
            let mut bytes = Vec::with_capacity(reader.snap.min(whole));
            for part in parts {
                bytes.extend(&part[..part.len().min(reader.snap - bytes.len())]);
            }
            let passed =
                Passed { nanos: now.as_nanos() as u64, interface: reader.interface, inbound, bytes, whole };
            match reader.to.try_send(passed) {
                Ok(()) => true,
                Err(Full(_)) => {
                    self.lost.add(1);
                    true
                }
                Err(Disconnected(_)) => false,
            }
        });
        self.any.store(!list.is_empty(), Ordering::Release);
    }
}
