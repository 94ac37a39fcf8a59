//! Holds the model against the real kernel: programs drawn from a seed make their calls to both,
//! and everything that these answer has to be the same.
//!
//! `SIM_KERNEL_SEEDS=100000` runs so many programs, `SIM_KERNEL_SEEDS=7..8` those of these seeds;
//! `SIM_KERNEL_STORY=1000` shows so many steps before a difference. What arrives late by the real
//! kernel's own doing (it puts off what travels when it has much to do) is told from what differs:
//! a program that differs is run again, slowly.

#[path = "kernel/asking.rs"]
mod asking;
#[path = "kernel/dice.rs"]
mod dice;
#[path = "kernel/full.rs"]
mod full;
#[path = "kernel/interrupts.rs"]
mod interrupts;
#[path = "kernel/meeting.rs"]
mod meeting;
#[path = "kernel/namespace.rs"]
mod namespace;
#[path = "kernel/program.rs"]
mod program;
#[path = "kernel/steps.rs"]
mod steps;
#[path = "kernel/traffic.rs"]
mod traffic;
#[path = "kernel/world.rs"]
mod world;

use std::os::unix::process::CommandExt;
use std::process::Command;

use program::Program;

const DEFAULT: u64 = 400;
const CHILD: &str = "SIM_KERNEL_CHILD";

fn seeds() -> std::ops::Range<u64> {
    let text = std::env::var("SIM_KERNEL_SEEDS").unwrap_or_default();
    let number = |text: &str| text.parse().ok();
    match text.split_once("..") {
        Some((from, to)) => number(from).unwrap_or(0)..number(to).unwrap_or(0),
        None => 0..number(&text).unwrap_or(DEFAULT),
    }
}

/// One program; a story if the two kernels differ.
fn one(seed: u64, uid: u32, slowly: bool) -> Result<(), String> {
    let mut program = Program::new(seed, uid, slowly);
    let result = program.run(250);
    program.finish();
    result
}

#[test]
fn the_model_is_as_the_real_kernel() {
    if std::env::var_os(CHILD).is_none() {
        let mut child = Command::new(std::env::current_exe().expect("the path of this test"));
        child.args(["--exact", "the_model_is_as_the_real_kernel", "--nocapture"]).env(CHILD, "1");
        // SAFETY: between fork and exec, with one thread; makes system calls only.
        unsafe { child.pre_exec(namespace::enter) };
        match child.status() {
            Ok(status) => assert!(status.success(), "the programs that were run by {child:?}"),
            Err(error) => eprintln!("not run, for want of a network namespace: {error}"),
        }
        return;
    }
    namespace::prepare().expect("a loopback device");
    // SAFETY: a call without pointers.
    let uid = unsafe { libc::geteuid() };
    let (mut late, mut bad) = (0, 0);
    for seed in seeds() {
        let Err(story) = one(seed, uid, false) else { continue };
        if one(seed, uid, true).is_ok() {
            late += 1;
            continue;
        }
        eprintln!("{story}\n");
        bad += 1;
        assert!(bad < 3, "the model differs from the real kernel");
    }
    eprintln!("{} programs agree, {late} of them when run slowly", seeds().count());
    assert_eq!(bad, 0, "the model differs from the real kernel");
}

/// Of full buffers only what holds whatever their sizes: the kernel counts its own memory, too.
#[test]
fn full_buffers_behave_alike() {
    for (unix, chunk) in [(false, 100), (false, 4000), (false, 70_000), (true, 100), (true, 4000)] {
        let real = full::story(&mut world::Real, unix, chunk);
        let model = full::story(&mut world::Model::new(1, 0), unix, chunk);
        assert_eq!(real, model, "unix: {unix}, writes of {chunk} bytes");
    }
}

/// What ends in two network namespaces need to meet.
#[test]
fn sockets_that_are_files_and_segments_are_alike() {
    let path = std::env::temp_dir().join(format!("shunt-sim-{}", std::process::id()));
    let path = path.to_str().expect("text");
    assert_eq!(meeting::files(&mut world::Real, path), meeting::files(&mut world::Model::new(1, 0), path));
    assert_eq!(meeting::segments(&mut world::Real), meeting::segments(&mut world::Model::new(1, 0)));
}

/// Which calls a handler interrupts, and which begin anew.
#[test]
fn handlers_interrupt_the_same_calls() {
    for kind in interrupts::KINDS {
        for restart in [false, true] {
            let real = interrupts::begins_anew(kind, restart);
            let model = interrupts::model_begins_anew(kind, restart);
            assert_eq!(real, model, "{kind:?}, SA_RESTART: {restart}");
        }
    }
}

/// With delays there is nothing to compare with; but nothing breaks, and the same seed gives the
/// same.
#[test]
fn slow_programs_are_the_same_each_time() {
    for seed in seeds().take(2000) {
        if let Err(story) = Program::alone(seed).run(250) {
            panic!("{story}");
        }
    }
}
