//! The time of a buffer in a steady stream, by the reader's clock. `bench/programs/zmq.c` and
//! `buffers.py` do the same, so that all are measured alike. The producer has written the buffer's
//! number into it, and the consumer reads all of it. The result is the time from one buffer to the
//! next, bytes and all.

use std::hint::black_box;
use std::time::Instant;

pub struct Meter {
    size: u64,
    /// Nanoseconds after the first buffer that do not count.
    warm: u64,
    count: u64,
    begun: Option<Instant>,
    /// When the measurement began and when the clock was last read, with the buffers until then.
    from: Option<(Instant, u64)>,
    last: Option<(Instant, u64)>,
}

impl Meter {
    pub fn new(size: u64, warm: u64) -> Meter {
        Meter { size, warm, count: 0, begun: None, from: None, last: None }
    }

    /// After how many buffers the clock is read, which costs as much as a small buffer.
    pub fn stride(size: u64) -> u64 {
        (65536 / size.max(1)).clamp(1, 256)
    }

    /// Reads a buffer, which must be the next one.
    pub fn take(&mut self, buffer: &[u8]) -> Result<(), String> {
        let number = buffer.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        if buffer.len() as u64 != self.size || number != Some(self.count) {
            return Err(format!("buffer {} is wrong", self.count));
        }
        touch(buffer);
        self.count += 1;
        let begun = *self.begun.get_or_insert_with(Instant::now);
        if self.count.is_multiple_of(Meter::stride(self.size)) {
            let now = Instant::now();
            self.last = Some((now, self.count));
            if self.from.is_none() && (now - begun).as_nanos() as u64 >= self.warm {
                self.from = self.last;
            }
        }
        Ok(())
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Nanoseconds, and the buffers that came in them.
    pub fn result(&self) -> Result<(u64, u64), String> {
        match (self.from, self.last) {
            (Some((from, before)), Some((to, after))) if after > before => {
                Ok(((to - from).as_nanos() as u64, after - before))
            }
            _ => Err("nothing came in the time that was measured".into()),
        }
    }
}

/// Reads all of it, as a program does that uses what it has received.
pub fn touch(bytes: &[u8]) {
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    black_box(rest.iter().fold(sum, |sum, &byte| sum.wrapping_add(byte.into())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_must_come_in_order_and_whole() {
        let mut meter = Meter::new(8, 0);
        assert!(meter.take(&0u64.to_le_bytes()).is_ok());
        assert!(meter.take(&2u64.to_le_bytes()).is_err());
        assert!(meter.take(&[1, 0, 0]).is_err());
    }

    #[test]
    fn what_came_after_the_warm_up_counts() {
        let mut meter = Meter::new(65536, 0);
        let mut buffer = vec![0; 65536];
        for number in 0u64..3 {
            assert!(meter.result().is_err());
            buffer[..8].copy_from_slice(&number.to_le_bytes());
            assert!(meter.take(&buffer).is_ok());
            if number > 0 {
                assert_eq!(meter.result().map(|(_, buffers)| buffers), Ok(number));
                break;
            }
        }
        assert_eq!(meter.count(), 2);
        assert!(Meter::new(8, u64::MAX).result().is_err());
    }
}
