//! The costs of a transport: for each size of message, how long it takes to arrive, and how long it
//! keeps the interfaces of both nodes busy.
//!
//! Two curves can be measured of any transport, and papers print both: the *one-way time* of a
//! message that is alone (half a ping-pong), and the *bandwidth* of messages that follow each
//! other. The second gives the *gap*, size over bandwidth: the least time between two messages of
//! one interface. So a message keeps its sender's interface busy for the gap, is on the wire for
//! the rest of the one-way time, and keeps its receiver's interface busy for the gap, which begins
//! a wire's time after the sender's did: the bytes stream through both.
//!
//! ```text
//! sender    |==== gap ====|
//! wire      |-- one way - gap --|
//! receiver                      |==== gap ====|
//!           |<--------- one way ------------->|
//! ```
//!
//! A lone message then takes its one-way time, and a stream of them goes at the measured bandwidth,
//! whatever the two are.
//!
//! For cLAN in 2003 the paper prints two numbers for each transport, the latency and the peak
//! bandwidth. The values between them follow from where its pipeline was perfect (section 5.2.2):
//! transfer took as long as 18 ns of computation for each byte at 16 KB with TCP, and at 2 KB with
//! SocketVIA. 16 KB at 510 Mb/s are 257 us, and their computation 295: so 38 us of each message are
//! neither, and the latency is 45. With SocketVIA it is between 7.7 us (at 1 KB, which was not yet
//! perfect) and 15.4 (at 2 KB), and the latency is 9.1. So nearly all of the latency is paid again
//! by each message of a stream, and the profiles have it all in the gap ([`Profile::linear`] with
//! an overhead of the whole latency): the wire itself takes no time. With a smaller overhead TCP
//! would keep its bandwidth with small blocks, and in the paper it does not.

/// The cost of a message of so many bytes, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Bytes.
    pub bytes: u64,
    /// From the call that sends it until the receiver has it, if it is alone.
    pub one_way: u64,
    /// From it to the next one, if they follow each other.
    pub gap: u64,
}

/// A transport: points in the order of their sizes, with straight lines between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    name: String,
    points: Vec<Point>,
}

impl Profile {
    /// From measured points (at least one; of several with the same size the first counts).
    pub fn measured(name: &str, mut points: Vec<Point>) -> Profile {
        assert!(!points.is_empty(), "a profile has at least one point");
        points.sort_by_key(|point| point.bytes);
        points.dedup_by_key(|point| point.bytes);
        Profile { name: name.into(), points }
    }

    /// From a latency, of which `overhead` is paid again by each message of a stream, and a
    /// bandwidth.
    pub fn linear(name: &str, latency: u64, overhead: u64, bits_per_second: u64) -> Profile {
        const FAR: u64 = 1 << 40;
        let bytes = (u128::from(FAR) * 8_000_000_000 / u128::from(bits_per_second)) as u64;
        let points = [0, FAR].map(|size| {
            let time = if size == 0 { 0 } else { bytes };
            Point { bytes: size, one_way: latency + time, gap: overhead.min(latency) + time }
        });
        Profile { name: name.into(), points: points.into() }
    }

    /// Its name for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long a lone message takes.
    pub fn one_way(&self, bytes: u64) -> u64 {
        self.between(bytes, |point| point.one_way)
    }

    /// How long a message keeps an interface from the next.
    pub fn gap(&self, bytes: u64) -> u64 {
        self.between(bytes, |point| point.gap)
    }

    /// How long a message is on the wire beside that.
    pub fn wire(&self, bytes: u64) -> u64 {
        self.one_way(bytes).saturating_sub(self.gap(bytes))
    }

    /// How long a lone message takes here: its one-way time, or the gap if the measured gap is
    /// longer.
    pub fn alone(&self, bytes: u64) -> u64 {
        self.wire(bytes) + self.gap(bytes)
    }

    /// Below the first point as there; above the last one with the slope of the last two.
    fn between(&self, bytes: u64, of: impl Fn(&Point) -> u64) -> u64 {
        let above = self.points.partition_point(|point| point.bytes <= bytes);
        let (from, to) = match above {
            0 => return of(&self.points[0]),
            _ if self.points.len() == 1 => return of(&self.points[0]),
            n if n == self.points.len() => (&self.points[n - 2], &self.points[n - 1]),
            n => (&self.points[n - 1], &self.points[n]),
        };
        let run = i128::from(to.bytes) - i128::from(from.bytes);
        let rise = i128::from(of(to)) - i128::from(of(from));
        let beyond = i128::from(bytes) - i128::from(from.bytes);
        // Rounded to the nearest: errors would add up over thousands of messages.
        let time = i128::from(of(from)) + (2 * rise * beyond + run).div_euclid(2 * run);
        time.clamp(0, i128::from(u64::MAX)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_and_bandwidth_make_a_line() {
        let tcp = Profile::linear("TCP", 45_000, 45_000, 510_000_000);
        assert_eq!(tcp.one_way(0), 45_000);
        assert_eq!(tcp.one_way(16384), 45_000 + 257_004);
        assert_eq!(tcp.wire(16384), 0);
        let part = Profile::linear("part", 45_000, 5_000, 510_000_000);
        assert_eq!((part.gap(0), part.wire(1 << 20), part.alone(0)), (5_000, 40_000, 45_000));
    }

    #[test]
    fn measured_points_are_joined() {
        let point = |bytes, one_way, gap| Point { bytes, one_way, gap };
        let profile =
            Profile::measured("here", vec![point(164, 300, 100), point(64, 200, 10), point(264, 500, 600)]);
        assert_eq!([0, 64, 114, 164, 214].map(|n| profile.one_way(n)), [200, 200, 250, 300, 400]);
        assert_eq!([364, 1064].map(|n| profile.one_way(n)), [700, 2100]);
        // By the bandwidth it takes longer than half a ping-pong: then it does.
        assert_eq!((profile.wire(264), profile.alone(264)), (0, 600));
        let lone = Profile::measured("one", vec![point(64, 7, 3)]);
        assert_eq!((lone.one_way(0), lone.gap(1 << 20)), (7, 3));
    }
}
