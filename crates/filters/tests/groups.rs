//! Groups that really run, in threads and in processes of this test program, which therefore has a
//! main of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use filters::flow::{Account, Meta, Policy};
use filters::{
    Chooser, Error, Failure, Group, Layout, Local, Next, Options, Place, Placement, Registry, StreamOptions,
    Transport, UnitOptions, With, spec,
};

#[path = "../../preload/tests/library/mod.rs"]
mod library;
use library::library;

type Test = fn(&Arc<Registry>);

fn main() {
    // A process of a group gets the path of the library, so that not each asks cargo for it.
    let of_group = std::env::var(filters::TICKET).is_ok().then(|| std::env::args().nth(1)).flatten();
    native::load(of_group.as_ref().map_or_else(|| library(), std::path::Path::new));
    let registry = registry().serve_if_asked();
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let tests: &[(&str, Test)] = &[
        ("threads_give_the_sum", |r| sums(r, Mode::Threads)),
        ("processes_give_the_sum", |r| sums(r, Mode::Processes(Transport::Auto))),
        ("processes_by_tcp_give_the_sum", |r| sums(r, Mode::Processes(Transport::Tcp))),
        ("processes_by_shunt_give_the_sum", |r| sums(r, Mode::Processes(Transport::Shunt))),
        ("shunt_promotes_what_goes_by_sockets", promoted),
        ("units_are_pipelined_and_their_parts_kept_apart", pipelined),
        ("a_failure_names_the_copy_and_ends_that_unit_only", failure_is_local),
        ("a_panic_is_a_failure", panic_is_a_failure),
        ("a_killed_process_fails_its_units_by_name_and_the_next_works", killed),
        ("a_unit_is_run_again_after_a_loss", rerun),
        ("parts_of_a_lost_attempt_are_not_those_of_the_next", rerun_parts),
        ("figures_stay_counted_over_losses", counted_on),
        ("a_producer_gets_slots_back_that_consumers_hold", held),
        ("a_cancelled_unit_ends_and_the_next_works", cancelled),
        ("a_timeout_ends_a_unit", timed_out),
        ("keys_go_to_the_same_copy", keyed),
        ("a_function_chooses", chosen),
        ("a_write_larger_than_a_buffer_is_refused_or_split", large_writes),
        ("what_is_left_unread_is_counted", left_unread),
        ("a_slow_consumer_stalls_its_producer", stalled),
        ("a_filter_that_cannot_be_made_is_named", unmakable),
        ("buffers_may_be_kept", kept),
        ("buffers_of_any_size_come_as_they_were_written", sizes),
        ("processes_that_all_know_one_another_link_up", triangle),
        ("a_process_that_ends_before_it_says_hello_is_noticed", stillborn),
        ("a_launcher_that_fails_ends_the_start", never_launched),
    ];
    let mut failed = 0;
    let mut ran = 0;
    for (name, test) in tests {
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        ran += 1;
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&registry)));
        println!("test {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
        failed += usize::from(result.is_err());
    }
    println!(
        "\ntest result: {}. {} passed; {failed} failed; 0 ignored;",
        if failed == 0 { "ok" } else { "FAILED" },
        ran - failed
    );
    std::process::exit(i32::from(failed > 0));
}

fn registry() -> Registry {
    let mut registry = Registry::default();
    registry
        // Buffers of 0, 1, 2... bytes, those of odd numbers with a note of the same length: with
        // and without room in entries.
        .function("sizes", |context| {
            for len in 0..number(&context.uow().params) as usize {
                let bytes = content(len);
                let note = if len % 2 == 1 { &bytes[..] } else { &[] };
                context.write_to(0, &bytes, With { key: len as u64, note })?;
            }
            Ok(())
        })
        // All are kept, moved, and read when the last has come.
        .function("check sizes", |context| {
            let mut all = Vec::new();
            while let Some(buffer) = context.read()? {
                all.push(buffer);
            }
            let right = std::thread::spawn(move || {
                let right = |(len, buffer): (usize, &filters::Buffer)| {
                    let bytes = content(len);
                    let note = if len % 2 == 1 { &bytes[..] } else { &[] };
                    let aligned = buffer.address().as_ptr().align_offset(8) == 0;
                    aligned && buffer.bytes() == bytes && buffer.note() == note && buffer.key() == len as u64
                };
                all.iter().enumerate().filter(|&each| right(each)).count() as u64
            });
            context.emit(right.join().expect("it does not panic").to_le_bytes())
        })
        // As many numbers as the unit of work asks for, dealt out among the copies.
        .function("numbers", |context| {
            let count = number(&context.uow().params);
            for value in (context.rank() as u64..count).step_by(context.copies()) {
                context.write_to(0, &value.to_le_bytes(), With { key: value % 7, note: b"n" })?;
            }
            Ok(())
        })
        .function("double", |context| {
            while let Some(buffer) = context.read()? {
                let value = number(&buffer) * 2;
                assert_eq!(buffer.note(), b"n");
                let mut draft = context.reserve(0)?;
                draft.bytes()[..8].copy_from_slice(&value.to_le_bytes());
                context.send(0, draft, 8, With { key: buffer.key(), note: b"" })?;
            }
            Ok(())
        })
        .function("sum", |context| {
            let (mut sum, mut count) = (0u64, 0u64);
            while let Some(buffer) = context.read()? {
                sum += number(&buffer);
                count += 1;
            }
            context.emit([sum.to_le_bytes(), count.to_le_bytes()].concat())
        })
        .function("slow", |context| {
            while let Some(buffer) = context.read()? {
                std::thread::sleep(Duration::from_millis(2));
                context.write_to(0, &buffer, With::default())?;
            }
            Ok(())
        })
        .function("fail at 13", |context| {
            while let Some(buffer) = context.read()? {
                if number(&buffer) == 13 {
                    return Err(Error::filter("thirteen is not to be doubled"));
                }
                context.write_to(0, &buffer, With::default())?;
            }
            Ok(())
        })
        .function("panic at 13", |context| {
            while let Some(buffer) = context.read()? {
                assert_ne!(number(&buffer), 13, "thirteen");
                context.write_to(0, &buffer, With::default())?;
            }
            Ok(())
        })
        .function("die at 13 once", |context| {
            let uow = context.uow().params.get(8..).map(|path| String::from_utf8_lossy(path).into_owned());
            while let Some(buffer) = context.read()? {
                if let Some(path) = &uow
                    && number(&buffer) == 13
                    && std::fs::remove_file(path).is_ok()
                {
                    fabric::sys::exit(9);
                }
                context.write_to(0, &buffer, With::default())?;
            }
            Ok(())
        })
        .function("seen keys", |context| {
            let mut keys = std::collections::BTreeSet::new();
            while let Some(buffer) = context.read()? {
                keys.insert(buffer.key() as u8);
            }
            context.emit(keys.into_iter().collect::<Vec<u8>>())
        })
        .function("large", |context| context.write(&[7; 100]))
        .function("lengths", |context| {
            let mut lengths = Vec::new();
            while let Some(buffer) = context.read()? {
                lengths.extend([buffer.len() as u8, u8::from(buffer.more())]);
            }
            context.emit(lengths)
        })
        .function("first only", |context| {
            let first = context.read()?.map_or(0, |buffer| number(&buffer));
            context.emit(first.to_le_bytes())
        })
        .function("keep all", |context| {
            let mut all = Vec::new();
            while let Some(buffer) = context.read()? {
                all.push(buffer);
            }
            context.emit(all.iter().map(|buffer| number(buffer)).sum::<u64>().to_le_bytes())
        })
        .function("emit each", |context| {
            while let Some(buffer) = context.read()? {
                std::thread::sleep(Duration::from_millis(2));
                context.emit(&*buffer)?;
            }
            Ok(())
        })
        .function("hold 5", |context| {
            let (mut held, mut sum) = (Vec::new(), 0);
            while let Some(buffer) = context.read()? {
                sum += number(&buffer);
                held.push(buffer);
                if held.len() == 5 {
                    // Long enough for the producer to need the kept buffers.
                    std::thread::sleep(Duration::from_millis(5));
                    held.clear();
                }
            }
            context.emit(sum.to_le_bytes())
        })
        .chooser("odd to 1", |_| Odd);
    registry
}

struct Odd;

impl Chooser for Odd {
    fn choose(&mut self, buffer: &Meta, copies: &[Account]) -> Result<usize, Error> {
        Ok(buffer.key as usize % copies.len())
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("it has eight bytes"))
}

fn small(policy: Policy) -> StreamOptions {
    StreamOptions { policy, buffer_size: 64, credits: 4, ..StreamOptions::default() }
}

/// A row of filters.
fn row(names: &[&str], policy: Policy) -> Layout {
    let mut layout = Layout::default();
    for name in names {
        layout.filter(&name.replace(' ', "-"), spec(name, b"")).expect("it is good");
    }
    for pair in names.windows(2) {
        let options = small(policy.clone());
        layout.stream(&pair[0].replace(' ', "-"), &pair[1].replace(' ', "-"), options).expect("it is good");
    }
    layout
}

fn copies(of: &[(&str, usize)], processes: bool) -> Placement {
    let place = |copies| Place { copies, processes, ..Place::default() };
    Placement(of.iter().map(|&(name, copies)| (name.to_string(), place(copies))).collect())
}

#[derive(Clone, Copy)]
enum Mode {
    Threads,
    Processes(Transport),
}

fn start(registry: &Arc<Registry>, layout: &Layout, placement: Placement, mode: Mode) -> Group {
    let mut options = Options::local(placement).expect("this program has a path");
    if let Mode::Processes(transport) = mode {
        options.transport = transport;
        let program = std::env::current_exe().expect("this program has a path");
        options.beside = Local::new(program, [library().display().to_string()]);
    }
    registry.start_with(layout, options).expect("the group starts")
}

fn sum_of(unit: &filters::Unit) -> (u64, u64) {
    let parts = unit.result().expect("the unit of work is done");
    parts
        .iter()
        .fold((0, 0), |(sum, count), part| (sum + number(&part.data), count + number(&part.data[8..])))
}

fn sums(registry: &Arc<Registry>, mode: Mode) {
    for policy in [Policy::RoundRobin, Policy::DemandDriven] {
        for many in [1, 3] {
            let layout = row(&["numbers", "double", "sum"], policy.clone());
            let processes = matches!(mode, Mode::Processes(_));
            let group =
                start(registry, &layout, copies(&[("numbers", many), ("double", many)], processes), mode);
            for count in [0u64, 1, 1000] {
                let unit = group.append(count.to_le_bytes(), UnitOptions::default());
                assert_eq!(sum_of(&unit), (count * count.saturating_sub(1), count), "{many} copies");
            }
            // Acknowledgements of consumers behind a link are under way a little longer.
            let until = Instant::now() + Duration::from_secs(10);
            let status = loop {
                let status = group.status();
                if status.figures.iter().all(|figures| figures.unacknowledged == 0) || Instant::now() > until
                {
                    break status;
                }
            };
            let sent: u64 = status.figures.iter().map(|figures| figures.sent).sum();
            let got: u64 = status.figures.iter().map(|figures| figures.buffers).sum();
            assert_eq!((sent, got), (2 * 1001, 2 * 1001));
            for figures in &status.figures {
                assert!(figures.unacknowledged_most <= 4 && figures.unacknowledged == 0, "{figures:?}");
                let expected: &[&str] = match mode {
                    Mode::Threads => &["thread"],
                    Mode::Processes(Transport::Tcp) => &["tcp"],
                    // So little may be over before the connection is promoted.
                    Mode::Processes(Transport::Shunt) => &["tcp", "shunt"],
                    Mode::Processes(Transport::Auto) => &["memory"],
                };
                assert!(expected.contains(&figures.way.as_str()), "{figures:?}");
            }
            assert_eq!(status.units, [3, 0, 0, 0]);
        }
    }
}

fn promoted(registry: &Arc<Registry>) {
    let layout = row(&["numbers", "sum"], Policy::RoundRobin);
    let group = start(registry, &layout, copies(&[("numbers", 1)], true), Mode::Processes(Transport::Shunt));
    let until = Instant::now() + Duration::from_secs(30);
    let ways = loop {
        assert_eq!(sum_of(&group.append(10_000u64.to_le_bytes(), UnitOptions::default())).1, 10_000);
        let ways: Vec<String> = group.status().figures.into_iter().map(|figures| figures.way).collect();
        if ways == ["shunt"] || Instant::now() > until {
            break ways;
        }
    };
    assert_eq!(ways, ["shunt"], "{}", native::status());
}

fn pipelined(registry: &Arc<Registry>) {
    let layout = row(&["numbers", "slow", "sum"], Policy::DemandDriven);
    let group = start(registry, &layout, copies(&[("slow", 2)], false), Mode::Threads);
    let begun = Instant::now();
    let units: Vec<_> =
        (1..=8u64).map(|count| group.append((count * 10).to_le_bytes(), UnitOptions::default())).collect();
    assert!(begun.elapsed() < Duration::from_millis(100), "appending does not wait");
    for (index, unit) in units.iter().enumerate().rev() {
        let count = (index as u64 + 1) * 10;
        assert_eq!(sum_of(unit), (count * (count - 1) / 2, count));
        assert_eq!(unit.progress(), (4, 4));
    }
}

fn failure_is_local(registry: &Arc<Registry>) {
    for processes in [false, true] {
        let layout = row(&["numbers", "fail at 13", "sum"], Policy::RoundRobin);
        let group =
            start(registry, &layout, copies(&[("numbers", 2), ("fail-at-13", 3)], processes), Mode::Threads);
        let units: Vec<_> = [10u64, 5000, 12]
            .iter()
            .map(|count| group.append(count.to_le_bytes(), UnitOptions::default()))
            .collect();
        assert_eq!(sum_of(&units[0]), (45, 10));
        match units[1].wait(None) {
            Some(Err(Failure::Filter { copy, host, what, .. })) => {
                assert!(copy.starts_with("fail-at-13["), "{copy}");
                assert_eq!((host.as_str(), what.as_str()), ("caller", "thirteen is not to be doubled"));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(sum_of(&units[2]), (66, 12));
    }
}

fn panic_is_a_failure(registry: &Arc<Registry>) {
    let layout = row(&["numbers", "panic at 13", "sum"], Policy::RoundRobin);
    let group = start(registry, &layout, Placement::default(), Mode::Threads);
    let failure = group
        .append(20u64.to_le_bytes(), UnitOptions::default())
        .wait(None)
        .expect("it ends")
        .expect_err("it fails");
    assert!(
        failure.to_string().contains("filter panic-at-13 on host 'caller' failed: it panicked"),
        "{failure}"
    );
    assert_eq!(sum_of(&group.append(3u64.to_le_bytes(), UnitOptions::default())), (3, 3));
}

fn killed(registry: &Arc<Registry>) {
    for transport in [Transport::Auto, Transport::Tcp] {
        let layout = row(&["numbers", "slow", "sum"], Policy::DemandDriven);
        let group = start(
            registry,
            &layout,
            copies(&[("numbers", 1), ("slow", 2)], true),
            Mode::Processes(transport),
        );
        assert_eq!(sum_of(&group.append(10u64.to_le_bytes(), UnitOptions::default())), (45, 10));
        let unit = group.append(100_000u64.to_le_bytes(), UnitOptions::default());
        let next = group.append(11u64.to_le_bytes(), UnitOptions::default());
        std::thread::sleep(Duration::from_millis(50));
        let victim =
            group.status().copies.into_iter().find(|copy| copy.name == "slow[1]").expect("it is there");
        let begun = Instant::now();
        // SAFETY: no pointers.
        unsafe { libc::kill(victim.pid as i32, libc::SIGKILL) };
        let failure = unit.wait(Some(Duration::from_secs(5))).expect("it ends").expect_err("it fails");
        let took = begun.elapsed();
        assert!(
            failure.to_string().contains("the process of slow[1] on host 'caller' was lost (signal: 9"),
            "{failure}"
        );
        assert!(took < Duration::from_secs(1), "{took:?}");
        // It was under way, too.
        assert!(next.wait(Some(Duration::from_secs(5))).expect("it ends").is_err());
        assert_eq!(sum_of(&group.append(12u64.to_le_bytes(), UnitOptions::default())), (66, 12));
        assert_eq!(group.status().losses, 1);
    }
}

fn rerun(registry: &Arc<Registry>) {
    let flag = std::env::temp_dir().join(format!("filters-rerun-{}", std::process::id()));
    std::fs::write(&flag, "").expect("it can be written");
    let layout = row(&["numbers", "die at 13 once", "sum"], Policy::RoundRobin);
    let group = start(registry, &layout, copies(&[("die-at-13-once", 2)], true), Mode::Threads);
    let params = [&20u64.to_le_bytes()[..], flag.to_string_lossy().as_bytes()].concat();
    let unit = group.append(params, UnitOptions { reruns: 1, ..UnitOptions::default() });
    assert_eq!(sum_of(&unit), (190, 20));
    assert_eq!(group.status().losses, 1);
    assert!(!flag.exists());
}

/// The caller's copy emits the rest of the lost attempt before it hears of the loss.
fn rerun_parts(registry: &Arc<Registry>) {
    let flag = std::env::temp_dir().join(format!("filters-parts-{}", std::process::id()));
    std::fs::write(&flag, "").expect("it can be written");
    let layout = row(&["numbers", "die at 13 once", "emit each"], Policy::RoundRobin);
    let group = start(registry, &layout, copies(&[("die-at-13-once", 1)], true), Mode::Threads);
    let params = [&40u64.to_le_bytes()[..], flag.to_string_lossy().as_bytes()].concat();
    let unit = group.append(params, UnitOptions { reruns: 1, ..UnitOptions::default() });
    let mut parts: Vec<u64> =
        unit.result().expect("it is done").iter().map(|part| number(&part.data)).collect();
    parts.sort_unstable();
    assert_eq!(parts, (0..40).collect::<Vec<u64>>());
    assert_eq!(group.status().losses, 1);
}

fn counted_on(registry: &Arc<Registry>) {
    let layout = row(&["numbers", "slow", "sum"], Policy::RoundRobin);
    let group = start(registry, &layout, copies(&[("slow", 2)], true), Mode::Threads);
    for round in 1..=3u64 {
        assert_eq!(sum_of(&group.append(10u64.to_le_bytes(), UnitOptions::default())), (45, 10));
        let status = group.status();
        assert_eq!(status.figures.len(), 4, "a row for each stream and pair of copies: {:?}", status.figures);
        let read: u64 = status.figures[2..].iter().map(|figures| figures.buffers).sum();
        assert_eq!(read, round * 10, "the caller's copy has counted all of it");
        let victim = status.copies.into_iter().find(|copy| copy.name == "slow[0]").expect("it is there");
        // SAFETY: no pointers.
        unsafe { libc::kill(victim.pid as i32, libc::SIGKILL) };
        let until = Instant::now() + Duration::from_secs(10);
        while group.status().losses < round && Instant::now() < until {
            std::thread::yield_now();
        }
    }
}

/// Buffers so large that there are addresses for few: the consumer keeps all but the last of those.
fn held(registry: &Arc<Registry>) {
    for mode in [Mode::Threads, Mode::Processes(Transport::Auto), Mode::Processes(Transport::Tcp)] {
        let mut layout = Layout::default();
        layout.filter("numbers", spec("numbers", b"")).expect("it is good");
        layout.filter("hold", spec("hold 5", b"")).expect("it is good");
        let options = StreamOptions { credits: 1, buffer_size: 1 << 29, ..small(Policy::RoundRobin) };
        layout.stream("numbers", "hold", options).expect("it is good");
        let processes = matches!(mode, Mode::Processes(_));
        let group = start(registry, &layout, copies(&[("numbers", 1)], processes), mode);
        let unit = group.append(60u64.to_le_bytes(), UnitOptions::default());
        assert_eq!(number(&unit.result().expect("it is done")[0].data), 59 * 30);
    }
}

/// The content of a buffer of so many bytes.
fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (len * 31 + at * 7 + 1) as u8).collect()
}

fn sizes(registry: &Arc<Registry>) {
    let ways = [Transport::Auto, Transport::Tcp].map(Mode::Processes);
    for mode in [Mode::Threads].into_iter().chain(ways) {
        let layout = row(&["sizes", "check sizes"], Policy::RoundRobin);
        let processes = matches!(mode, Mode::Processes(_));
        let group = start(registry, &layout, copies(&[("sizes", 1)], processes), mode);
        for _ in 0..3 {
            let unit = group.append(64u64.to_le_bytes(), UnitOptions::default());
            assert_eq!(number(&unit.result().expect("it is done")[0].data), 64);
        }
    }
}

fn cancelled(registry: &Arc<Registry>) {
    let layout = row(&["numbers", "slow", "sum"], Policy::DemandDriven);
    let group = start(registry, &layout, copies(&[("slow", 2)], false), Mode::Threads);
    let unit = group.append(1_000_000u64.to_le_bytes(), UnitOptions::default());
    std::thread::sleep(Duration::from_millis(20));
    unit.cancel();
    assert_eq!(unit.wait(Some(Duration::from_secs(5))), Some(Err(Failure::Cancelled)));
    assert_eq!(unit.next_part(None), Next::Failed(Failure::Cancelled));
    let waiting = group.append(1_000_000u64.to_le_bytes(), UnitOptions::default());
    waiting.cancel();
    assert_eq!(waiting.wait(Some(Duration::from_secs(5))), Some(Err(Failure::Cancelled)));
    assert_eq!(sum_of(&group.append(12u64.to_le_bytes(), UnitOptions::default())), (66, 12));
}

fn timed_out(registry: &Arc<Registry>) {
    let layout = row(&["numbers", "slow", "sum"], Policy::DemandDriven);
    let group = start(registry, &layout, Placement::default(), Mode::Threads);
    let options = UnitOptions { timeout: Some(Duration::from_millis(50)), ..UnitOptions::default() };
    let unit = group.append(1_000_000u64.to_le_bytes(), options);
    assert_eq!(unit.wait(Some(Duration::from_secs(5))), Some(Err(Failure::TimedOut)));
    assert_eq!(sum_of(&group.append(4u64.to_le_bytes(), UnitOptions::default())), (6, 4));
}

fn keyed(registry: &Arc<Registry>) {
    let layout = row(&["numbers", "seen keys"], Policy::Keyed);
    let group = start(registry, &layout, copies(&[("numbers", 3), ("seen-keys", 3)], false), Mode::Threads);
    let parts = group.append(100u64.to_le_bytes(), UnitOptions::default()).result().expect("it is done");
    let mut all: Vec<u8> = parts.iter().flat_map(|part| part.data.clone()).collect();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4, 5, 6], "each key was seen by one copy");
}

fn chosen(registry: &Arc<Registry>) {
    let mut layout = Layout::default();
    layout.filter("numbers", spec("numbers", b"")).expect("it is good");
    layout.filter("keys", spec("seen keys", b"")).expect("it is good");
    let options = StreamOptions { chooser: spec("odd to 1", b""), ..small(Policy::User) };
    layout.stream("numbers", "keys", options).expect("it is good");
    let group = start(registry, &layout, copies(&[("keys", 2)], false), Mode::Threads);
    let mut parts = group.append(100u64.to_le_bytes(), UnitOptions::default()).result().expect("it is done");
    parts.sort_by(|one, other| one.copy.cmp(&other.copy));
    assert_eq!((&*parts[0].data, &*parts[1].data), (&[0u8, 2, 4, 6][..], &[1u8, 3, 5][..]));
}

fn large_writes(registry: &Arc<Registry>) {
    for split in [false, true] {
        let mut layout = Layout::default();
        layout.filter("large", spec("large", b"")).expect("it is good");
        layout.filter("lengths", spec("lengths", b"")).expect("it is good");
        let options = StreamOptions { split, ..small(Policy::RoundRobin) };
        layout.stream("large", "lengths", options).expect("it is good");
        let group = start(registry, &layout, Placement::default(), Mode::Threads);
        let unit = group.append(*b"", UnitOptions::default());
        if split {
            assert_eq!(unit.result().expect("it is done")[0].data, [64, 1, 36, 0]);
        } else {
            let failure = unit.wait(None).expect("it ends").expect_err("it fails");
            let said = failure.to_string();
            assert!(said.contains("a write of 100 bytes does not fit into a buffer of 64"), "{said}");
        }
    }
}

fn left_unread(registry: &Arc<Registry>) {
    let layout = row(&["numbers", "first only"], Policy::RoundRobin);
    let group = start(registry, &layout, Placement::default(), Mode::Threads);
    assert!(group.append(50u64.to_le_bytes(), UnitOptions::default()).result().is_ok());
    let figures = &group.status().figures[0];
    assert_eq!((figures.sent, figures.buffers, figures.unread), (50, 50, 49));
}

fn stalled(registry: &Arc<Registry>) {
    let layout = row(&["numbers", "slow", "sum"], Policy::RoundRobin);
    let group = start(registry, &layout, Placement::default(), Mode::Threads);
    let unit = group.append(50u64.to_le_bytes(), UnitOptions::default());
    assert_eq!(sum_of(&unit), (49 * 25, 50));
    let figures = &group.status().figures[0];
    assert_eq!(figures.unacknowledged_most, 4, "as many as it has credits");
    assert!(figures.blocked_ns > 50_000_000, "{figures:?}");
    assert!(figures.latency(0.5).is_some_and(|nanos| nanos > 4_000_000), "{figures:?}");
}

fn unmakable(registry: &Arc<Registry>) {
    let layout = row(&["numbers", "nobody", "sum"], Policy::RoundRobin);
    let failure = registry.start(&layout, Placement::default()).expect_err("it does not start");
    assert!(failure.to_string().contains("no filter is registered as 'nobody'"), "{failure}");
    assert!(failure.to_string().contains("filter nobody"), "{failure}");
}

fn kept(registry: &Arc<Registry>) {
    for mode in [Mode::Threads, Mode::Processes(Transport::Auto), Mode::Processes(Transport::Tcp)] {
        let layout = row(&["numbers", "keep all"], Policy::RoundRobin);
        let processes = matches!(mode, Mode::Processes(_));
        let group = start(registry, &layout, copies(&[("numbers", 1)], processes), mode);
        let parts = group.append(1000u64.to_le_bytes(), UnitOptions::default()).result().expect("it is done");
        assert_eq!(number(&parts[0].data), 999 * 500);
    }
}

/// Each of three workers is a neighbour of both others: each must take them in the same order, or
/// they wait in a circle.
fn triangle(registry: &Arc<Registry>) {
    for transport in [Transport::Auto, Transport::Tcp] {
        let mut layout = row(&["numbers", "double", "sum"], Policy::DemandDriven);
        layout.stream("numbers", "sum", small(Policy::DemandDriven)).expect("it is good");
        let placement = copies(&[("numbers", 1), ("double", 1), ("sum", 1)], true);
        let begun = Instant::now();
        let group = start(registry, &layout, placement, Mode::Processes(transport));
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert_eq!(sum_of(&group.append(100u64.to_le_bytes(), UnitOptions::default())), (9900, 100));
    }
}

fn stillborn(registry: &Arc<Registry>) {
    let layout = row(&["numbers", "sum"], Policy::RoundRobin);
    let mut options = Options::local(copies(&[("numbers", 1)], true)).expect("this program has a path");
    options.beside = filters::Local::new("/bin/false", []);
    let begun = Instant::now();
    let failure = registry.start_with(&layout, options).expect_err("it does not start");
    let said = failure.to_string();
    assert!(said.contains("the process of numbers on host 'caller' was lost (exit status: 1)"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

fn never_launched(registry: &Arc<Registry>) {
    struct Never;
    impl filters::Launcher for Never {
        fn hosts(&mut self) -> std::io::Result<Vec<String>> {
            Ok(vec!["moon".into()])
        }
        fn address(&mut self) -> std::io::Result<std::net::IpAddr> {
            Ok(std::net::Ipv4Addr::LOCALHOST.into())
        }
        fn launch(&mut self, _: &str, _: &filters::Ticket) -> std::io::Result<Box<dyn filters::Process>> {
            Err(std::io::Error::other("there is no air"))
        }
    }
    // The caller's own worker, with the sum, is there by then.
    let layout = row(&["numbers", "sum"], Policy::RoundRobin);
    let mut options = Options::local(Placement::default()).expect("this program has a path");
    options.launcher = Box::new(Never);
    let failure = registry.start_with(&layout, options).expect_err("it does not start");
    assert_eq!(failure.to_string(), "no process could be started on host 'moon': there is no air");
}
