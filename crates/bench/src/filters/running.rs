//! Filters that really run: the measured filters, the processes that they run in, and waiting for
//! units of work. A process of a group is this program once more, which notices that it was given a
//! ticket ([`serve_if_asked`]).

use super::meter::Meter;
use crate::error::{Error, Result, failed};
use crate::process::{Launch, Process};
use crate::results::Side;
use crate::signals;
use filters::{
    Context, Group, Launcher, Layout, Local, Options, Part, Place, Placement, Registry, StreamOptions,
    TICKET, Ticket, Transport, UnitOptions, With, spec,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where all copies run: each in a process of its own.
const HOST: &str = "here";
/// How long a unit of work may take beyond the time that it was asked to take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes connections go by Shunt's sockets, as they are to be measured so. A connection that waits
/// more than it carries, as on a busy machine, would stay on TCP.
pub const PROMOTE: (&str, &str) = ("SHUNT_PROMOTE_RATE", "0");
/// How long to wait for connections to be promoted.
const TO_PROMOTE: Duration = Duration::from_secs(10);

/// If this process was started for a group, works for it and ends.
pub fn serve_if_asked() {
    if std::env::var_os(TICKET).is_some() {
        registry().serve_if_asked();
    }
}

/// A group whose copies have a process each, and whose buffers go by this side's transport.
pub struct Running {
    group: Group,
    side: Side,
}

/// How the processes of a group are started.
pub struct Start {
    /// libshunt.so, for groups that use sockets.
    pub library: Option<PathBuf>,
    pub side: Side,
    /// How many units of work may be under way at once.
    pub window: usize,
}

impl Running {
    /// Starts so many copies of each filter.
    pub fn start(start: Start, layout: &Layout, copies: &[usize]) -> Result<Running> {
        let mut placement = Placement::default();
        for (filter, &copies) in layout.filters.iter().zip(copies) {
            let place = Place { copies, hosts: vec![HOST.into()], processes: true };
            placement.0.insert(filter.name.clone(), place);
        }
        let transport = match start.side {
            Side::FiltersShunt => Transport::Shunt,
            Side::FiltersTcp => Transport::Tcp,
            _ => Transport::Auto,
        };
        let options = Options {
            placement,
            launcher: Box::new(Again { library: start.library }),
            beside: Local::myself().map_err(failed("this program is nowhere"))?,
            transport,
            window: start.window,
            trace: false,
        };
        let group = Arc::new(registry()).start_with(layout, options).map_err(failed("no group"))?;
        Ok(Running { group, side: start.side })
    }

    pub fn append(&self, params: impl Into<Vec<u8>>) -> filters::Unit {
        self.group.append(params, UnitOptions::default())
    }

    /// Runs a unit of work that is to take so long.
    pub fn run(&self, params: impl Into<Vec<u8>>, takes: Duration) -> Result<Vec<Part>> {
        wait(&self.append(params), takes)
    }

    /// Runs a unit of work, of many small buffers, until buffers go as asked: connections are
    /// promoted after some calls, and large buffers take few.
    pub fn warm_up(&self, params: &[u8]) -> Result<()> {
        let end = Instant::now() + TO_PROMOTE;
        loop {
            self.run(params, Duration::ZERO)?;
            if self.check_way().is_ok() || Instant::now() >= end {
                return Ok(());
            }
        }
    }

    /// Checks that buffers went as asked: a connection that Shunt could not promote must not be
    /// measured as if it were.
    pub fn check_way(&self) -> Result<()> {
        let wanted = match self.side {
            Side::FiltersShunt => "shunt",
            Side::FiltersTcp => "tcp",
            _ => "memory",
        };
        let figures = self.group.status().figures;
        match figures.iter().find(|figures| figures.way != wanted) {
            Some(other) => {
                Err(Error::Failed(format!("{} goes by {}, not by {wanted}", other.stream, other.way)))
            }
            None => Ok(()),
        }
    }
}

/// Waits for the end of a unit of work; Ctrl-C ends the wait.
pub fn wait(unit: &filters::Unit, takes: Duration) -> Result<Vec<Part>> {
    let end = Instant::now() + takes + PATIENCE;
    loop {
        signals::check()?;
        match unit.wait(Some(Duration::from_millis(100))) {
            Some(Ok(())) => return unit.result().map_err(failed("a unit of work")),
            Some(Err(failure)) => return Err(Error::Failed(failure.to_string())),
            None if Instant::now() >= end => {
                return Err(Error::Failed("a unit of work does not come to its end".into()));
            }
            None => {}
        }
    }
}

/// The numbers that the copies of a filter have emitted, a row for each part.
pub fn told(parts: &[Part], filter: &str) -> Vec<Vec<u64>> {
    let of_it = |part: &&Part| part.copy.split('[').next() == Some(filter);
    parts.iter().filter(of_it).map(|part| numbers(&part.data)).collect()
}

/// Numbers as bytes.
pub fn bytes(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let number = |chunk: &[u8]| chunk.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
    bytes.chunks(8).map(number).collect()
}

/// Some of the filters below in a row, with streams of one kind between them.
pub fn chain(filters: &[&str], options: &StreamOptions) -> Layout {
    let mut layout = Layout::default();
    for filter in filters {
        layout.filter(filter, spec(filter, b"")).expect("these names are good, and differ");
    }
    for ends in filters.windows(2) {
        layout.stream(ends[0], ends[1], options.clone()).expect("both filters are there");
    }
    layout
}

/// The filters that the processes of a group can make.
fn registry() -> Registry {
    let mut registry = Registry::default();
    registry
        .function("source", source)
        .function("sink", sink)
        .function("repository", repository)
        .function("clip", pass_on)
        .function("zoom", pass_on)
        .function("visualization", visualization)
        .function("dealer", dealer)
        .function("worker", worker);
    registry
}

/// Sends buffers of one size for a while, each with its number in front. The unit of work has the
/// size, and the nanoseconds before and of the measurement. Emits the processor time of its
/// process, and the number of buffers.
fn source(context: &mut Context) -> std::result::Result<(), filters::Error> {
    let [size, warm, measure] = params(context);
    let mut buffer = vec![0x5a; size as usize];
    let stride = Meter::stride(size);
    let (begun, cpu, mut count) = (Instant::now(), cpu_ns(), 0u64);
    loop {
        for _ in 0..stride {
            buffer[..8].copy_from_slice(&count.to_le_bytes());
            context.write(&buffer)?;
            count += 1;
        }
        if begun.elapsed().as_nanos() as u64 >= warm + measure {
            break;
        }
    }
    context.emit(bytes(&[cpu_ns() - cpu, count]))
}

/// Reads them, all bytes of them. Emits the time in nanoseconds, the buffers that came in it, and
/// the processor time of its process for all.
fn sink(context: &mut Context) -> std::result::Result<(), filters::Error> {
    let [size, warm, measure] = params(context);
    let (mut meter, cpu) = (Meter::new(size, warm), cpu_ns());
    while let Some(buffer) = context.read()? {
        meter.take(&buffer).map_err(filters::Error::filter)?;
    }
    if measure == 0 {
        return Ok(()); // a warm-up
    }
    let (took, buffers) = meter.result().map_err(filters::Error::filter)?;
    context.emit(bytes(&[took, buffers, cpu_ns() - cpu, meter.count()]))
}

/// Sends blocks of one size, as many as asked. Emits the time of its start.
fn repository(context: &mut Context) -> std::result::Result<(), filters::Error> {
    let [began, size, mut left] = [now_ns(), params(context)[0], params(context)[1]];
    let block = vec![0x5a; size.min(left) as usize];
    while left > 0 {
        let now = size.min(left);
        context.write(&block[..now as usize])?;
        left -= now;
    }
    context.emit(bytes(&[began]))
}

/// A filter without computation.
fn pass_on(context: &mut Context) -> std::result::Result<(), filters::Error> {
    while let Some(buffer) = context.read()? {
        context.write_to(0, &buffer, With::default())?;
    }
    Ok(())
}

/// Reads the blocks. Emits when it had the last one, and how many bytes came.
fn visualization(context: &mut Context) -> std::result::Result<(), filters::Error> {
    let mut all = 0;
    while let Some(buffer) = context.read()? {
        super::meter::touch(&buffer);
        all += buffer.len() as u64;
    }
    context.emit(bytes(&[now_ns(), all]))
}

/// Deals out empty pieces of work. Emits the time of its start.
fn dealer(context: &mut Context) -> std::result::Result<(), filters::Error> {
    let [count, ..] = params(context);
    let began = now_ns();
    for piece in 0..count {
        context.write(&piece.to_le_bytes())?;
    }
    context.emit(bytes(&[began]))
}

/// Does the pieces: sleeps until a piece's time is over, counted from its start. For copy 0 that
/// time is so many thousandths of the others'. Emits when it ended, how many pieces it did, and how
/// long it waited for a piece on average, over the second half of them, as the simulation does.
fn worker(context: &mut Context) -> std::result::Result<(), filters::Error> {
    let [_, takes, slowness] = params(context);
    let takes = if context.rank() == 0 { takes * slowness / 1000 } else { takes };
    precise_sleep();
    let mut spans = Vec::new();
    while let Some(piece) = context.read()? {
        let began = now_ns();
        drop(piece);
        sleep_until(began + takes);
        spans.push((began, now_ns()));
    }
    let count = spans.len() as u64;
    let idle = filters::sim::CopyTimes { spans, most_unacknowledged: 0 }.idle();
    context.emit(bytes(&[context.rank() as u64, now_ns(), count, idle]))
}

fn params(context: &Context) -> [u64; 3] {
    let numbers = numbers(&context.uow().params);
    [0, 1, 2].map(|at| numbers.get(at).copied().unwrap_or(0))
}

/// The host's clock, which is the same in all processes.
fn now_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Processor time of this process.
fn cpu_ns() -> u64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to the structure that it is given, and to nothing else.
    unsafe { libc::clock_gettime(which, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Makes sleeps of this thread end in time, not up to 50 us later.
fn precise_sleep() {
    // SAFETY: this option takes a number, which is all that it is given.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

/// Sleeps until this time of [`now_ns`].
fn sleep_until(end: u64) {
    let end = libc::timespec { tv_sec: (end / 1_000_000_000) as i64, tv_nsec: (end % 1_000_000_000) as i64 };
    // SAFETY: the call reads the structure that it is given; without one for what is left it writes
    // nothing.
    while unsafe {
        libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &end, std::ptr::null_mut())
    } == libc::EINTR
    {}
}

/// Starts this program again.
struct Again {
    library: Option<PathBuf>,
}

impl Launcher for Again {
    fn hosts(&mut self) -> io::Result<Vec<String>> {
        Ok(vec![HOST.into()])
    }

    fn address(&mut self) -> io::Result<IpAddr> {
        Ok(Ipv4Addr::LOCALHOST.into())
    }

    fn launch(&mut self, _host: &str, ticket: &Ticket) -> io::Result<Box<dyn filters::Process>> {
        let mut launch =
            Launch::new(std::env::current_exe()?).args(["bench"]).env(TICKET, ticket.to_string());
        if let Some(library) = &self.library {
            launch = launch.env("SHUNT_LIB", library).env(PROMOTE.0, PROMOTE.1);
        }
        let process = launch.stop_with(libc::SIGKILL).start().map_err(io::Error::other)?;
        Ok(Box::new(Started(Some(process))))
    }
}

struct Started(Option<Process>);

impl filters::Process for Started {
    fn ended(&mut self) -> Option<String> {
        let process = self.0.as_mut()?;
        (!process.is_running()).then(|| process.failure("has ended").to_string())
    }

    fn kill(&mut self) {
        self.0 = None; // which stops it
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_went() {
        let sent = [0, 1, u64::MAX, 1 << 40];
        assert_eq!(numbers(&bytes(&sent)), sent);
    }

    #[test]
    fn parts_are_told_apart_by_their_filters() {
        let part = |copy: &str, number| Part { copy: copy.into(), data: bytes(&[number]) };
        let parts = [part("worker[0]", 3), part("dealer", 4), part("worker[1]", 5)];
        assert_eq!(told(&parts, "worker"), [[3], [5]]);
        assert_eq!(told(&parts, "dealer"), [[4]]);
    }

    #[test]
    fn a_sleep_is_not_too_short() {
        precise_sleep();
        let began = now_ns();
        sleep_until(began + 2_000_000);
        assert!(now_ns() >= began + 2_000_000);
        assert!(cpu_ns() > 0);
    }
}
