//! Counts for each stream, copy of its producer and copy of its consumer. Each count has one
//! writer, a copy's own thread, so counting is a load and a store. Any thread may read at any time.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use stream::spin::nanos_of;

/// A count with one writer.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds.
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    /// Sets.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Reads.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts of the producer copy. On lines of their own: another thread writes the consumer's.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Sent {
    /// Buffers.
    pub buffers: Count,
    /// Their bytes.
    pub bytes: Count,
    /// The most that were unacknowledged at once.
    pub most: Count,
    /// Ticks that it waited for credits, or for a slot, before a buffer to this consumer copy.
    pub blocked: Count,
}

/// Counts of the consumer copy, likewise.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Got {
    /// Buffers that it started on.
    pub buffers: Count,
    /// Their bytes.
    pub bytes: Count,
    /// Buffers that were left over when it had ended its unit of work.
    pub unread: Count,
    /// Ticks that it waited for something to read, when this producer copy's buffer ended the wait.
    pub idle: Count,
    /// From being sent to being started on.
    pub latency: Histogram,
}

/// Durations in classes whose bounds grow by an eighth: values that are read from it are at most so
/// far off.
#[derive(Debug)]
pub struct Histogram([Count; CLASSES]);

const CLASSES: usize = 8 * 48;

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram([const { Count(AtomicU64::new(0)) }; CLASSES])
    }
}

impl Histogram {
    /// Counts a duration in ticks.
    #[inline]
    pub fn record(&self, ticks: u64) {
        self.0[class_of(ticks)].add(1);
    }

    /// How many were counted, by class; classes at the end that are empty are left out.
    fn counts(&self) -> Vec<u64> {
        let mut counts: Vec<u64> = self.0.iter().map(Count::value).collect();
        counts.truncate(counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1));
        counts
    }
}

/// Below 8 each value has its class; from there on eight classes to each power of two.
fn class_of(ticks: u64) -> usize {
    if ticks < 8 {
        return ticks as usize;
    }
    let power = 63 - ticks.leading_zeros();
    let eighth = (ticks >> (power - 3)) & 7;
    ((power as usize - 2) * 8 + eighth as usize).min(CLASSES - 1)
}

/// The middle of a class, in ticks.
fn middle_of(class: usize) -> u64 {
    if class < 8 {
        return class as u64;
    }
    let (power, eighth) = (class / 8 + 2, (class % 8) as u64);
    let width = 1u64 << (power - 3);
    (8 + eighth) * width + width / 2
}

/// Figures of one stream, producer copy and consumer copy, as they are reported.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The stream's name.
    pub stream: String,
    /// The producer copy, as people name it.
    pub producer: String,
    /// The consumer copy.
    pub consumer: String,
    /// The transport of buffers: `memory`, `shunt` or `tcp`.
    pub way: String,
    /// Buffers sent.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Buffers that the consumer started on.
    pub buffers: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Sent, and not started on.
    pub unacknowledged: u64,
    /// The most of them at once.
    pub unacknowledged_most: u64,
    /// Left unread by a consumer that had ended its unit of work.
    pub unread: u64,
    /// Nanoseconds that the producer waited.
    pub blocked_ns: u64,
    /// Nanoseconds that the consumer waited.
    pub idle_ns: u64,
    /// From sent to started on: nanoseconds, by class. See [`Figures::latency`].
    pub latencies: Vec<u64>,
}

impl Figures {
    /// Adds what the producer counted.
    pub fn add_sent(&mut self, sent: &Sent) {
        self.sent += sent.buffers.value();
        self.sent_bytes += sent.bytes.value();
        self.unacknowledged_most = self.unacknowledged_most.max(sent.most.value());
        self.blocked_ns += nanos_of(sent.blocked.value());
    }

    /// Adds what the consumer counted.
    pub fn add_got(&mut self, got: &Got) {
        self.buffers += got.buffers.value();
        self.bytes += got.bytes.value();
        self.unread += got.unread.value();
        self.idle_ns += nanos_of(got.idle.value());
        let mut nanos = Vec::new();
        for (class, count) in got.latency.counts().into_iter().enumerate() {
            if count > 0 {
                add_at(&mut nanos, class_of(nanos_of(middle_of(class))), count);
            }
        }
        self.add_latencies(&nanos);
    }

    /// Joins the counts of two workers, or two attempts, for the same.
    pub fn join(&mut self, other: &Figures) {
        self.sent += other.sent;
        self.sent_bytes += other.sent_bytes;
        self.buffers += other.buffers;
        self.bytes += other.bytes;
        self.unacknowledged += other.unacknowledged;
        self.unacknowledged_most = self.unacknowledged_most.max(other.unacknowledged_most);
        self.unread += other.unread;
        self.blocked_ns += other.blocked_ns;
        self.idle_ns += other.idle_ns;
        self.add_latencies(&other.latencies);
        if self.way.is_empty() {
            self.way.clone_from(&other.way);
        }
    }

    fn add_latencies(&mut self, counts: &[u64]) {
        for (class, &count) in counts.iter().enumerate().take(CLASSES) {
            add_at(&mut self.latencies, class, count);
        }
    }

    /// The latency that a part of all buffers (0 to 1) stay below, in nanoseconds, within an
    /// eighth; `None` if there were none.
    pub fn latency(&self, part: f64) -> Option<u64> {
        let all: u64 = self.latencies.iter().sum();
        let wanted = ((all as f64 * part).ceil() as u64).clamp(1, all.max(1));
        let mut seen = 0;
        self.latencies.iter().enumerate().find_map(|(class, count)| {
            seen += count;
            (seen >= wanted && *count > 0).then(|| middle_of(class))
        })
    }
}

fn add_at(counts: &mut Vec<u64>, class: usize, count: u64) {
    if counts.len() <= class {
        counts.resize(class + 1, 0);
    }
    counts[class] += count;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_class_is_right_within_an_eighth(ticks in 0u64..1 << 45) {
            let middle = middle_of(class_of(ticks));
            prop_assert!(middle.abs_diff(ticks) <= ticks / 8, "{ticks} as {middle}");
            prop_assert_eq!(class_of(middle), class_of(ticks));
        }
    }

    #[test]
    fn latencies_are_told_by_parts() {
        let mut figures = Figures::default();
        assert_eq!(figures.latency(0.5), None);
        for nanos in [100u64, 100, 100, 1000] {
            add_at(&mut figures.latencies, class_of(nanos), 1);
        }
        let close = |value: Option<u64>, to: u64| value.is_some_and(|value| value.abs_diff(to) <= to / 8);
        assert!(close(figures.latency(0.5), 100) && close(figures.latency(0.75), 100), "{figures:?}");
        assert!(close(figures.latency(0.99), 1000) && close(figures.latency(1.0), 1000), "{figures:?}");
        let other = figures.clone();
        figures.join(&other);
        assert_eq!(figures.latencies.iter().sum::<u64>(), 8);
    }
}
