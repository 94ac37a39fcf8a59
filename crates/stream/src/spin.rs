//! How long to spin before sleeping. Spinning pays when the wait is shorter than the cost of a
//! wake-up (17 us each way). It must never take a processor from a thread that could use it. So
//! each waiter learns from how long its waits lasted, and follows these rules:
//!
//! * It spins at most about twice the cost of a wake-up.
//! * The more spins were in vain, the more rarely it spins.
//! * It does not spin when the peer last waited on this very processor.
//! * It does not spin where more than a tenth of its waits are ended by what a spin does not look
//!   for, as in a server that also waits for others by tcp: these may want the processor.
//! * It offers the processor to others (sched_yield()) when it has not done so for 20 us: a thread
//!   that is woken seldom preempts one that has just begun to run, and would wait for the end of
//!   the spin.
//! * It does not spin for a while after it was preempted in a spin: that happens only where more
//!   threads are runnable than there are processors.
//! * A real-time thread (SCHED_FIFO, SCHED_RR) never spins. Another thread that wants its
//!   processor, the peer or any other, would wait until it sleeps, which it may never do.

use fabric::sync::{AtomicU64, Ordering, spin_hint};
use fabric::sys;

/// The processor's own clock, in ticks, and the processor's number.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(sim)]
    return fabric::sim::ticks();
    #[cfg(all(target_arch = "x86_64", not(sim)))]
    // SAFETY: rdtsc has no preconditions.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(all(target_arch = "aarch64", not(sim)))]
    // SAFETY: reading the virtual counter has no preconditions.
    unsafe {
        let count: u64;
        core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack));
        count
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", sim)))]
    sys::now()
}

/// The processor that the thread runs on.
pub fn cpu() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(sim)))]
    // SAFETY: rdtscp has no preconditions; Linux keeps the processor's number in the low 12 bits of
    // TSC_AUX.
    unsafe {
        let mut aux = 0;
        core::arch::x86_64::__rdtscp(&mut aux);
        u64::from(aux & 0xfff)
    }
    #[cfg(any(not(target_arch = "x86_64"), sim))]
    {
        u64::from(sys::getcpu())
    }
}

/// Ticks per millisecond; measured once against the kernel's clock.
#[inline]
pub fn ticks_per_ms() -> u64 {
    if cfg!(sim) {
        return 1_000_000;
    }
    match TICKS_PER_MS.load(Ordering::Relaxed) {
        0 => measure_once(),
        known => known,
    }
}

#[cold]
fn measure_once() -> u64 {
    let begun = (BEGUN_TICKS.load(Ordering::Relaxed), BEGUN.load(Ordering::Relaxed));
    let rate = between(begun, both(&mut sys::now, &mut ticks)).unwrap_or_else(|| measure(sys::now, ticks));
    TICKS_PER_MS.store(rate, Ordering::Relaxed);
    rate
}

/// Reads both clocks, so that a program that first asks for the rate a moment later need not wait
/// for the measurement. Most never ask.
pub fn begin() {
    let (count, now) = both(&mut sys::now, &mut ticks);
    BEGUN_TICKS.store(count, Ordering::Relaxed);
    BEGUN.store(now, Ordering::Relaxed);
}

static BEGUN_TICKS: AtomicU64 = AtomicU64::new(0);
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// The rate between two looks at both clocks, if they are long enough apart, and not so long that
/// the machine may have been suspended in between, for which one of the clocks stands still.
fn between((t0, n0): (u64, u64), (t, n): (u64, u64)) -> Option<u64> {
    let known = n0 != 0 && (MEASURED_NS..=BEGUN_NS).contains(&n.saturating_sub(n0));
    known.then(|| rate(t.wrapping_sub(t0), n - n0))
}

const BEGUN_NS: u64 = 1_000_000_000;

/// How long the measurement takes.
const MEASURED_NS: u64 = 200_000;
/// If the kernel's clock went on by no more than this meanwhile, both clocks were read at once.
/// Else the thread has lost its processor in between, and they are read again, a limited number of
/// times.
const AT_ONCE_NS: u64 = 2_000;
const READINGS: usize = 32;

/// Ticks per millisecond of the kernel's clock.
fn measure(mut now: impl FnMut() -> u64, mut ticks: impl FnMut() -> u64) -> u64 {
    let (t0, n0) = both(&mut now, &mut ticks);
    loop {
        let (t, n) = both(&mut now, &mut ticks);
        if n - n0 > MEASURED_NS {
            return rate(t - t0, n - n0);
        }
    }
}

fn rate(ticks: u64, nanos: u64) -> u64 {
    (u128::from(ticks) * 1_000_000 / u128::from(nanos)).max(1) as u64
}

/// Reads both clocks at once, as far as can be: ticks, nanoseconds.
fn both(now: &mut impl FnMut() -> u64, ticks: &mut impl FnMut() -> u64) -> (u64, u64) {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..READINGS {
        let (before, count, after) = (now(), ticks(), now());
        let took = after - before;
        if took < best.0 {
            best = (took, count, before + took / 2);
        }
        if took <= AT_ONCE_NS {
            break;
        }
    }
    (best.1, best.2)
}

/// Nanoseconds as ticks.
#[inline]
pub fn ticks_of(nanos: u64) -> u64 {
    let rate = ticks_per_ms();
    match nanos.checked_mul(rate) {
        Some(product) => product / 1_000_000,
        None => (u128::from(nanos) * u128::from(rate) / 1_000_000).min(u64::MAX.into()) as u64,
    }
}

/// Ticks as nanoseconds.
pub fn nanos_of(ticks: u64) -> u64 {
    (u128::from(ticks) * 1_000_000 / u128::from(ticks_per_ms())) as u64
}

static TICKS_PER_MS: AtomicU64 = AtomicU64::new(0);
/// No spinning in this process before this time, in ticks.
static CROWDED_UNTIL: AtomicU64 = AtomicU64::new(0);

/// The experience of one waiter. Plain data, zero to start with.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Learned {
    /// Spins that may still be lost in a row; below zero: short sleeps before the next spin.
    credit: i16,
    /// How many waits, of late, were ended by what a spin does not look for, weighted.
    elsewhere: u16,
    /// Spins in a row that were in vain after the credit was used up.
    lost: u16,
    /// How often in a row this waiter was preempted in a spin.
    preempted: u16,
}

/// The outcome of a spin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spun {
    /// The event came.
    Won,
    /// It did not come in time.
    Lost,
    /// There was no spin.
    None,
}

impl Learned {
    const MOST: i16 = 8;
    /// One spin in 2^4 sleeps costs nothing that can be felt, and two ends that both sleep still
    /// happen to spin together before long.
    const LOST_MOST: u16 = 4;
    const PREEMPTED_MOST: u16 = 6;
    /// What one of them weighs; beyond what sum there is no spin; up to what it grows.
    const ELSEWHERE: u16 = 8;
    const ELSEWHERE_MOST: u16 = 32;
    const ELSEWHERE_CAP: u16 = 64;

    /// As a word, to keep in an atomic.
    pub fn to_bits(self) -> u64 {
        [self.credit as u16, self.elsewhere, self.lost, self.preempted]
            .iter()
            .rev()
            .fold(0, |bits, &part| bits << 16 | u64::from(part))
    }

    /// From [`Learned::to_bits`].
    pub fn from_bits(bits: u64) -> Learned {
        let part = |i: u32| (bits >> (16 * i)) as u16;
        Learned { credit: part(0) as i16, elsewhere: part(1), lost: part(2), preempted: part(3) }
    }

    /// Spins until `done` or for `limit` ticks, if it is likely to pay. `peer_cpu` is the processor
    /// where the peer last waited, `NO_CPU` if that is not known.
    #[inline]
    pub fn spin(&mut self, limit: u64, peer_cpu: u64, mut done: impl FnMut() -> bool) -> Spun {
        if limit == 0 || !self.pays() || (peer_cpu != NO_CPU && peer_cpu == cpu()) {
            return Spun::None;
        }
        let start = ticks();
        if start < CROWDED_UNTIL.load(Ordering::Relaxed) || is_realtime(start) {
            return Spun::None;
        }
        let (mut last, mut offered) = (start, OFFERED.load(Ordering::Relaxed));
        loop {
            for _ in 0..8 {
                if done() {
                    self.win();
                    return Spun::Won;
                }
                spin_hint();
            }
            let now = ticks();
            if now - last > ticks_of(PREEMPTED_NS) {
                // We did not run for a while: another thread wants this processor.
                self.preempted = (self.preempted + 1).min(Self::PREEMPTED_MOST);
                CROWDED_UNTIL.store(now + (ticks_per_ms() << self.preempted), Ordering::Relaxed);
                self.lose();
                return Spun::Lost;
            }
            if now - start > limit {
                self.lose();
                return Spun::Lost;
            }
            last = now;
            if now.saturating_sub(offered) > ticks_of(OFFER_NS) {
                sys::yield_now();
                last = ticks();
                offered = last;
                OFFERED.store(last, Ordering::Relaxed);
            }
        }
    }

    /// Whether [`Learned::spin`] with that limit may spin.
    pub fn may_spin(&self, limit: u64) -> bool {
        limit != 0 && self.pays()
    }

    /// Whether to spin in the next wait.
    fn pays(&self) -> bool {
        self.credit >= 0 && self.elsewhere < Self::ELSEWHERE_MOST
    }

    fn win(&mut self) {
        let elsewhere = self.elsewhere.saturating_sub(1);
        *self = Learned { credit: Self::MOST, elsewhere, lost: 0, preempted: 0 };
    }

    /// Where the peer must be woken itself, and that takes long, every spin is lost although the
    /// sleep that follows looks short. So the more spins are in vain, the rarer they get.
    fn lose(&mut self) {
        self.credit -= 1;
        if self.credit < 0 {
            self.lost = (self.lost + 1).min(Self::LOST_MOST);
            self.credit = -(1 << self.lost);
        }
    }

    /// Learns from a wait that ended in the kernel after `waited` ticks: might a spin of `limit`
    /// have been enough?
    pub fn slept(&mut self, waited: u64, limit: u64) {
        self.elsewhere = self.elsewhere.saturating_sub(1);
        // A wake-up itself takes about as long as a spin may last, so a short wait shows as up to
        // twice the limit.
        if self.credit < 0 && waited <= limit * 2 {
            self.credit += 1;
        }
    }

    /// Learns from a wait that was ended by something else than what a spin looks for.
    pub fn ended_elsewhere(&mut self) {
        self.elsewhere = (self.elsewhere + Self::ELSEWHERE).min(Self::ELSEWHERE_CAP);
    }
}

/// Whether the thread is a real-time one. Asked now and then, of one thread of the process. Where
/// some are and some are not, each is taken for the other for a while at most.
#[inline]
pub fn is_realtime(now: u64) -> bool {
    if now >= ASK_AT.load(Ordering::Relaxed) {
        ASK_AT.store(now + ticks_of(ASK_NS), Ordering::Relaxed);
        REALTIME.store(u64::from(sys::is_realtime()), Ordering::Relaxed);
    }
    REALTIME.load(Ordering::Relaxed) != 0
}

const ASK_NS: u64 = 10_000_000;
static ASK_AT: AtomicU64 = AtomicU64::new(0);
static REALTIME: AtomicU64 = AtomicU64::new(0);

/// The processor of a peer that never waited.
pub const NO_CPU: u64 = u64::MAX;
const PREEMPTED_NS: u64 = 100_000;
/// So often the processor is offered to whoever waits for it.
const OFFER_NS: u64 = 20_000;
/// When this process did that last, in ticks: many short spins are as bad as a long one.
static OFFERED: AtomicU64 = AtomicU64::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1000;

    #[test]
    fn the_rate_is_known_from_two_looks_a_moment_apart() {
        let begun = (7_000, 5_000);
        let after = |nanos: u64| (7_000 + 3 * nanos, 5_000 + nanos);
        assert_eq!(between(begun, after(MEASURED_NS)), Some(3_000_000));
        assert_eq!(between(begun, after(BEGUN_NS)), Some(3_000_000));
        assert_eq!(between(begun, after(MEASURED_NS - 1)), None, "the looks take too long beside that");
        assert_eq!(between(begun, after(BEGUN_NS + 1)), None, "it may have been suspended");
        assert_eq!(between((0, 0), after(MEASURED_NS)), None, "there was no first look");
    }

    #[test]
    fn the_rate_is_right_although_the_thread_loses_its_processor_while_it_is_measured() {
        // Three ticks are a nanosecond. Each reading of a clock takes 50 ns; one of them takes 50
        // ms more, before or after the reading.
        for at in 0..40 {
            for lost_before in [true, false] {
                let (time, looks) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
                let pass = |before: bool| {
                    let lost = looks.get() == at && before == lost_before;
                    time.set(time.get() + 25 + if lost { 50_000_000 } else { 0 });
                };
                let look = || {
                    pass(true);
                    let read = time.get();
                    pass(false);
                    looks.set(looks.get() + 1);
                    read
                };
                let rate = measure(look, || look() * 3);
                assert!(
                    (2_900_000..3_100_000).contains(&rate),
                    "{rate}, lost at look {at}, before it: {lost_before}"
                );
            }
        }
    }

    /// How many of `turns` waits spin, in vain, if each of them ends `wait` ticks after that.
    fn spins(learned: &mut Learned, turns: usize, wait: u64) -> usize {
        let mut spins = 0;
        for _ in 0..turns {
            if learned.pays() {
                learned.lose();
                spins += 1;
            }
            learned.slept(wait, LIMIT);
        }
        spins
    }

    #[test]
    fn spins_that_never_pay_get_rare_though_sleeps_look_short() {
        assert!(spins(&mut Learned::default(), 320, LIMIT) < 30);
        assert_eq!(
            spins(&mut Learned::default(), 320, LIMIT * 10),
            1,
            "none but the first while waits are long"
        );
    }

    #[test]
    fn there_is_no_spin_where_waits_are_ended_elsewhere() {
        let mut learned = Learned::default();
        let mut turn = |ours: usize| {
            (0..ours).for_each(|_| learned.slept(LIMIT, LIMIT));
            learned.ended_elsewhere();
            learned.pays()
        };
        assert!((0..100).all(|_| turn(10)), "one in ten");
        assert!(!(0..100).fold(true, |_, _| turn(3)), "one in four");
        (0..60).for_each(|_| learned.slept(LIMIT, LIMIT));
        assert!(learned.pays(), "that is over");
        learned.ended_elsewhere();
        assert_eq!(Learned::from_bits(learned.to_bits()), learned);
    }

    #[test]
    fn a_spin_offers_its_processor_now_and_then() {
        let start = ticks();
        let offered = || OFFERED.load(Ordering::Relaxed) >= start;
        // It may be preempted before.
        assert!((0..100).any(|_| {
            CROWDED_UNTIL.store(0, Ordering::Relaxed);
            Learned::default().spin(ticks_of(10_000_000), NO_CPU, offered) == Spun::Won
        }));
    }

    #[test]
    fn one_spin_that_pays_makes_up_for_all_that_did_not() {
        let mut learned = Learned::default();
        spins(&mut learned, 320, LIMIT);
        assert!((0..=1 << Learned::LOST_MOST).any(|_| {
            learned.slept(LIMIT, LIMIT);
            learned.pays()
        }));
        learned.win();
        assert_eq!(spins(&mut learned, 9, LIMIT), 9);
        assert_eq!(Learned::from_bits(learned.to_bits()), learned);
    }
}
