//! Runs the library in a simulated world, one seed after the other. A seed decides the schedule,
//! the kernel's moods and what two programs do, and replays exactly.
//!
//! The library is `libshunt.so` itself, built with `--cfg sim`: its atomics, system calls, clocks
//! and its ways to libc go through [`seam`] to the host. Each process is a copy of it ([`image`]);
//! a child of fork() has its memory at its parent's addresses ([`family`]). Threads are coroutines
//! ([`world`]), of which one runs at a time and, at any step on shared memory, gives way to
//! another. [`sim::kernel`] answers the system calls; `tests/kernel.rs` holds it against Linux.
//!
//! [`scenario`] draws what the programs do. They read and write ([`socket`]), wait ([`waiting`]),
//! get other numbers ([`number`]), and make processes and threads ([`program`]); and [`judge`]
//! compares what they get with what plain TCP would give: bytes in order, ends, errors, and nobody
//! who sleeps beside bytes that are his. A failure prints the last steps ([`trace`]), a column for
//! each process.
//!
//! [`server`] is a program of its own: it serves several connections by one epoll set. [`signals`]
//! has handlers that run at any step, and stopped processes. With `--hosts` the two processes are
//! on different hosts ([`hosts`]), with `--spaces` in two network namespaces ([`spaces`]), without
//! these two.
//!
//! Not simulated: several threads that read or close one connection; and relays. The library's
//! clone() fails: it returns twice on one stack, and a coroutine's stack cannot be copied to where
//! another one runs. So a connection that needs a relay is reset, which the judge allows from then
//! on. Relays are tested as programs see them (`tests/`, crate `sockets`).

#[allow(dead_code)] // Of the library's file, not all is needed here.
#[path = "../../ofi/src/abi.rs"]
mod abi;
mod family;
mod functions;
mod hosts;
mod image;
mod judge;
mod number;
mod plan;
mod program;
#[allow(dead_code)] // Of the library's file, the names are needed here.
#[path = "../../sockets/src/reason.rs"]
mod reason;
#[path = "../../sockets/src/path/rule.rs"]
mod rule;
mod scenario;
#[path = "../../fabric/src/seam.rs"]
mod seam;
mod server;
mod signals;
mod socket;
mod spaces;
mod trace;
mod waiting;
mod world;

use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use image::Image;
use scenario::Wanted;

const HELP: &str = "\
Runs libshunt.so, built with --cfg sim, in a simulated world.

Usage: sim [OPTIONS]

  --library FILE   the library (libshunt.so beside this program)
  --seeds A-B      these seeds
  --from SEED      the first seed (1)
  --seconds N      for so long (10, if no seeds are named)
  --seed SEED      one seed, with its last 50 steps
  --shown N        with its last N steps
  --jobs N         in so many processes (as many as there are processors)
  --failures N     stop when so many seeds have failed (1)
  --off RULE       with a rule of the library switched off
  --hosts          the two processes are on different hosts
  --spaces         the two processes are in different network namespaces
  --plain          programs run without the library
  --help           this text

Exit status: 0 if no seed failed, 1 if one did, 2 for a mistake in the command.";

/// How many processes of the simulated world may have the library.
const IMAGES: usize = 2;

struct Arguments {
    library: PathBuf,
    first: u64,
    last: u64,
    /// Every so many seeds, as others run the rest.
    stride: u64,
    seconds: Option<u64>,
    jobs: u64,
    failures: u64,
    wanted: Wanted,
}

fn arguments() -> Result<Option<Arguments>, String> {
    let beside = std::env::current_exe().map_err(|why| why.to_string())?;
    let mut found = Arguments {
        library: beside.with_file_name("libshunt.so"),
        first: 1,
        last: u64::MAX,
        stride: 1,
        seconds: None,
        jobs: std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
        failures: 1,
        wanted: Wanted::default(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value; see --help"));
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no number"));
        match word.as_str() {
            "--help" | "-h" => return Ok(None),
            "--library" => found.library = value()?.into(),
            "--off" => found.wanted.off = number_of(&value()?)?,
            "--hosts" => found.wanted.hosts = true,
            "--spaces" => found.wanted.spaces = true,
            "--plain" => found.wanted.plain = true,
            "--seconds" => found.seconds = Some(number(&value()?)?),
            "--from" => found.first = number(&value()?)?,
            "--stride" => found.stride = number(&value()?)?.max(1),
            "--jobs" => found.jobs = number(&value()?)?.max(1),
            "--failures" => found.failures = number(&value()?)?.max(1),
            "--shown" => found.wanted.shown = number(&value()?)? as usize,
            "--seed" => {
                found.first = number(&value()?)?;
                (found.last, found.jobs) = (found.first, 1);
                found.wanted.shown = found.wanted.shown.max(SHOWN);
            }
            "--seeds" => {
                let text = value()?;
                let (first, last) = text.split_once('-').unwrap_or((&text, &text));
                (found.first, found.last) = (number(first)?, number(last)?);
            }
            _ => return Err(format!("{word:?} is not understood; see --help")),
        }
    }
    if found.last == u64::MAX && found.seconds.is_none() {
        found.seconds = Some(10);
    }
    Ok(Some(found))
}

const SHOWN: usize = 50;

/// The number of a rule of this name.
fn number_of(name: &str) -> Result<u32, String> {
    let number = rule::ALL.iter().position(|rule| format!("{rule:?}") == name);
    number.map(|at| at as u32 + 1).ok_or_else(|| format!("{name:?} is no rule; there are {:?}", rule::ALL))
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("sim: {why}");
            return ExitCode::from(2);
        }
    };
    if arguments.jobs > 1 && arguments.last > arguments.first {
        return in_processes(&arguments);
    }
    let images: Result<Vec<Image>, _> =
        (0..IMAGES).map(|number| Image::load(&arguments.library, number, functions::find)).collect();
    match images {
        Ok(images) => seeds(&arguments, &images),
        Err(why) => {
            eprintln!("sim: {}: {why}", arguments.library.display());
            ExitCode::from(2)
        }
    }
}

/// Each of several processes takes its part of the seeds.
fn in_processes(arguments: &Arguments) -> ExitCode {
    let myself = std::env::current_exe().expect("a program has a file");
    let jobs: Result<Vec<Child>, _> = (0..arguments.jobs)
        .map(|job| {
            let mut command = Command::new(&myself);
            command.args(std::env::args().skip(1)).args(["--jobs", "1"]);
            command.args(["--seeds", &format!("{}-{}", arguments.first + job, arguments.last)]);
            command.args(["--stride", &arguments.jobs.to_string()]);
            if let Some(seconds) = arguments.seconds {
                command.args(["--seconds", &seconds.to_string()]);
            }
            command.spawn()
        })
        .collect();
    let jobs = match jobs {
        Ok(jobs) => jobs,
        Err(why) => {
            eprintln!("sim: cannot start itself: {why}");
            return ExitCode::from(2);
        }
    };
    let ends = jobs.into_iter().map(|mut job| job.wait().ok().and_then(|status| status.code()));
    ends.max_by_key(|end| end.unwrap_or(1))
        .flatten()
        .map_or(ExitCode::FAILURE, |code| ExitCode::from(code as u8))
}

/// Runs one seed after the other.
fn seeds(arguments: &Arguments, images: &[Image]) -> ExitCode {
    note_crashes();
    let began = Instant::now();
    let (mut runs, mut steps, mut calls, mut failed) = (0u64, 0u64, 0u64, 0u64);
    let mut counts = [0; image::COUNTS];
    let (mut written, mut in_memory, mut owed) = (0u64, 0u64, (0, 0));
    let mut seed = arguments.first;
    while seed <= arguments.last && failed < arguments.failures {
        if arguments.seconds.is_some_and(|seconds| began.elapsed() > Duration::from_secs(seconds)) {
            break;
        }
        SEED.store(seed, Ordering::Relaxed);
        match scenario::run(images, seed, arguments.wanted) {
            Ok(ran) => {
                steps += ran.steps;
                calls += ran.calls;
                written += ran.written;
                in_memory += ran.in_memory;
                owed = owed.max((ran.owed, seed));
                world::with(|world| print!("{}", world.trace.picture()));
            }
            Err(why) => {
                failed += 1;
                if arguments.wanted.shown == 0 && arguments.failures == 1 {
                    let _ = scenario::run(images, seed, Wanted { shown: SHOWN, ..arguments.wanted });
                }
                world::with(|world| println!("{}seed {seed}: {why}", world.trace.picture()));
            }
        }
        for image in images {
            for (sum, count) in counts.iter_mut().zip(image.counts()) {
                *sum += count;
            }
        }
        runs += 1;
        seed = seed.saturating_add(arguments.stride);
    }
    let took = began.elapsed().as_secs_f64();
    println!(
        "{runs} seeds, {failed} failed; {steps} steps, {calls} system calls; {:.0} % of {} MB went by memory; the longest wait beside \
         bytes {:.1} ms (seed {}); {:.0} seeds and {:.0} steps a second",
        100.0 * in_memory as f64 / written.max(1) as f64,
        written >> 20,
        owed.0 as f64 / 1e6,
        owed.1,
        runs as f64 / took,
        steps as f64 / took
    );
    let reasons = reason::NAMES.iter().zip(&counts[REASONS..]).filter(|(_, count)| **count > 0);
    let reasons: Vec<String> = reasons.map(|(name, count)| format!("{name} ({count})")).collect();
    println!(
        "{} of {} ends moved to memory; reasons for TCP: {}",
        counts[PROMOTED],
        counts[TRACKED],
        reasons.join(", ")
    );
    if !arguments.wanted.plain && runs >= ENOUGH && counts[PROMOTED] == 0 {
        println!("no connection moved to memory: nothing of the library was tried");
        return ExitCode::FAILURE;
    }
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// In so many seeds a connection moves to memory, if any ever does.
const ENOUGH: u64 = 20;
/// Where counts lie, in words, as in `sockets/src/report.rs`.
const TRACKED: usize = 1;
const PROMOTED: usize = 2;
const REASONS: usize = 16;

static SEED: AtomicU64 = AtomicU64::new(0);

/// A seed in which the library crashes is named before the simulator goes down with it.
fn note_crashes() {
    extern "C" fn crashed(signal: i32) {
        let mut text = *b"seed                     : the library crashed\n";
        let mut seed = SEED.load(Ordering::Relaxed);
        for place in text[5..25].iter_mut().rev() {
            *place = if seed > 0 { b'0' + (seed % 10) as u8 } else { b' ' };
            seed /= 10;
        }
        // SAFETY: the calls take numbers and a text that is as long as that.
        unsafe {
            libc::write(1, text.as_ptr().cast(), text.len());
            libc::sigaction(signal, &std::mem::zeroed(), std::ptr::null_mut());
            libc::raise(signal);
        }
    }
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT, libc::SIGILL] {
        // SAFETY: zeroes are a valid sigaction; the handler only makes calls that a handler may
        // make.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = crashed as *const () as usize;
            action.sa_flags = libc::SA_ONSTACK | libc::SA_NODEFER;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}
