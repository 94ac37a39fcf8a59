//! Streams between two processes, each end of which is a `native::Stream`: the bytes that they
//! carry, and the path that they report.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, thread};

use native::{Listener, Path, Stream};
use sockets::report::at;

use two::*;

mod two;

/// Bytes each way.
const BYTES: usize = 8 << 20;

#[test]
fn role() {
    let Some(words) = two::role() else { return };
    let path = if env::var_os("NATIVE_TCP").is_some() { Path::Tcp } else { Path::Auto };
    let (stream, dials) = match &words[1..] {
        [] => {
            let listener = Listener::bind("127.0.0.1:0", path).unwrap();
            say(listener.local_addr().unwrap().port());
            let (stream, from) = listener.accept().unwrap();
            assert_eq!(stream.peer_addr().unwrap(), from);
            answer_warm(&stream);
            (stream, false)
        }
        [port] => {
            let to = ("127.0.0.1", port.parse::<u16>().unwrap());
            let stream = Stream::connect(to, path, Some(LONG)).unwrap();
            stream.set_nodelay(true).unwrap();
            warm(&stream);
            (stream, true)
        }
        _ => unreachable!("no such role"),
    };
    // Asked now: later a writer whose reader stalls, as it may on a busy machine, goes back to tcp.
    say(if stream.is_promoted() { "promoted" } else { "by tcp" });
    match words[0].as_str() {
        "both" => both_ways(&stream, dials),
        "frames" => frames(stream, dials),
        "plain" => beside_plain(&stream, dials),
        "waits" => waits(&stream, dials),
        "death" => death(&stream, dials),
        _ => unreachable!("no such role"),
    }
}

/// Runs both ends of a role with these variables; returns the path that each reports.
fn run(role: &str, listens: &[(&str, &str)], dials: &[(&str, &str)]) -> [String; 2] {
    let listening = Player::new(role, listens);
    let dialling = Player::new(&format!("{role} {}", listening.next()), dials);
    let said = [dialling.next(), listening.next()];
    assert_eq!([dialling.next(), listening.next()], ["done", "done"]);
    dialling.ends_well();
    listening.ends_well();
    said
}

#[test]
fn bytes_go_both_ways_through_memory() {
    let report = Scratch::report("memory");
    let with = [("SHUNT_REPORT", report.text())];
    assert_eq!(run("both", &with, &with), ["promoted", "promoted"]);
    assert_eq!((report.count(at::TRACKED), report.count(at::PROMOTED)), (2, 2));
    assert!(report.count(at::RING_IN) > 0 && report.count(at::RING_OUT) > 0);
}

#[test]
fn by_virtual_interfaces_too() {
    let with = [("SHUNT_STREAM", "via")];
    assert_eq!(run("both", &with, &with), ["promoted", "promoted"]);
}

#[test]
fn a_program_under_shunt_is_as_good_an_end() {
    let shunt = [("LD_PRELOAD", library().to_str().unwrap())];
    assert_eq!(run("both", &shunt, &[]), ["promoted", "promoted"]);
    assert_eq!(run("both", &[], &shunt), ["promoted", "promoted"]);
    assert_eq!(run("both", &shunt, &shunt), ["promoted", "promoted"]);
}

#[test]
fn bytes_go_both_ways_by_tcp_where_that_is_asked_for() {
    let tcp = ("NATIVE_TCP", "1");
    for more in [&[tcp][..], &[tcp, ("LD_PRELOAD", library().to_str().unwrap())]] {
        let report = Scratch::report("tcp");
        let with = [more, &[("SHUNT_REPORT", report.text())]].concat();
        // It is enough at one end; the other one would move to memory.
        let other_alone = [&[("NATIVE_OTHER_TCP", "1")], &with[1..]].concat();
        for other in [&with[..], &other_alone] {
            assert_eq!(run("both", &with, other), ["by tcp", "by tcp"]);
            assert_eq!(report.count(at::PROMOTED), 0);
        }
    }
    assert_eq!(run("both", &[("SHUNT_PATH", "tcp")], &[("NATIVE_OTHER_TCP", "1")]), ["by tcp", "by tcp"]);
}

fn both_ways(stream: &Stream, dials: bool) {
    thread::scope(|scope| {
        scope.spawn(|| write_all_of(stream, u64::from(dials)));
        read_all_of(stream, u64::from(!dials));
    });
    say("done");
}

fn write_all_of(mut stream: &Stream, seed: u64) {
    let (mut bytes, mut dice, mut at) = (Bytes::new(seed), Dice(seed + 77), 0);
    let mut buffer = vec![0; 200_000];
    while at < BYTES {
        let part = &mut buffer[..dice.size(200_000).min(BYTES - at)];
        bytes.fill(part);
        at += part.len();
        if dice.next() % 2 == 0 {
            stream.write_all(part).unwrap();
            continue;
        }
        let (one, two) = part.split_at(part.len() / 3);
        let mut pieces = [IoSlice::new(one), IoSlice::new(&[]), IoSlice::new(two)];
        let mut pieces = &mut pieces[..];
        while !pieces.is_empty() {
            let count = stream.write_vectored(pieces).unwrap();
            IoSlice::advance_slices(&mut pieces, count);
        }
    }
}

fn read_all_of(mut stream: &Stream, seed: u64) {
    let (mut bytes, mut dice, mut at) = (Bytes::new(seed), Dice(seed + 99), 0);
    let mut buffer = vec![0; 200_000];
    while at < BYTES {
        let part = &mut buffer[..dice.size(200_000).min(BYTES - at)];
        let count = if dice.next() % 2 == 0 || part.len() < 2 {
            stream.read(part).unwrap()
        } else {
            let (one, two) = part.split_at_mut(part.len() / 2);
            stream.read_vectored(&mut [IoSliceMut::new(one), IoSliceMut::new(two)]).unwrap()
        };
        assert_ne!(count, 0, "an end after {at}");
        bytes.check(&part[..count], at);
        at += count;
    }
}

#[test]
fn one_thread_reads_while_two_write() {
    assert_eq!(run("frames", &[], &[]), ["promoted", "promoted"]);
}

/// Frames: number of the writer, number of the frame, length, bytes.
fn frames(stream: Stream, _dials: bool) {
    const FRAMES: u32 = 3000;
    let stream = Arc::new(stream);
    let turn = Arc::new(Mutex::new(()));
    let writers = [0u8, 1].map(|writer| {
        let (stream, turn) = (stream.clone(), turn.clone());
        thread::spawn(move || {
            let mut dice = Dice(u64::from(writer) + 5);
            for number in 0..FRAMES {
                let mut frame = vec![writer];
                frame.extend(number.to_ne_bytes());
                let mut payload = vec![0; dice.size(9000)];
                frame.extend((payload.len() as u32).to_ne_bytes());
                Bytes::new(u64::from(writer) << 32 | u64::from(number)).fill(&mut payload);
                frame.extend(payload);
                let _turn = turn.lock().unwrap();
                (&*stream).write_all(&frame).unwrap();
            }
        })
    });
    let mut next = [0u32; 2];
    while next != [FRAMES; 2] {
        let mut head = [0; 9];
        (&*stream).read_exact(&mut head).unwrap();
        let writer = head[0];
        let [number, len] = [1, 5].map(|at| u32::from_ne_bytes(*head[at..].first_chunk().unwrap()));
        assert_eq!(number, next[usize::from(writer)], "of writer {writer}");
        next[usize::from(writer)] += 1;
        let mut payload = vec![0; len as usize];
        (&*stream).read_exact(&mut payload).unwrap();
        Bytes::new(u64::from(writer) << 32 | u64::from(number)).check(&payload, 0);
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    say("done");
}

#[test]
fn other_sockets_of_the_program_stay_as_they_are() {
    let report = Scratch::report("plain");
    let with = [("SHUNT_REPORT", report.text())];
    assert_eq!(run("plain", &with, &with), ["promoted", "promoted"]);
    assert_eq!(report.count(at::TRACKED), 2, "native streams, and no others");
}

/// std's sockets beside the stream.
fn beside_plain(mut stream: &Stream, dials: bool) {
    let mut plain = if dials {
        let mut port = [0; 2];
        stream.read_exact(&mut port).unwrap();
        TcpStream::connect(("127.0.0.1", u16::from_ne_bytes(port))).unwrap()
    } else {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        stream.write_all(&listener.local_addr().unwrap().port().to_ne_bytes()).unwrap();
        listener.accept().unwrap().0
    };
    for round in 0..ROUNDS {
        if dials {
            plain.write_all(&[round as u8]).unwrap();
            ping(stream, 1);
        } else {
            let mut byte = [0];
            plain.read_exact(&mut byte).unwrap();
            assert_eq!(byte, [round as u8]);
            pong(stream, 1);
        }
    }
    say("done");
}

#[test]
fn waits_end_in_time_and_by_signals() {
    for with in [&[][..], &[("NATIVE_TCP", "1")]] {
        let way = if with.is_empty() { "promoted" } else { "by tcp" };
        assert_eq!(run("waits", with, with), [way, way]);
    }
}

extern "C" fn on_signal(_signal: i32) {}

fn waits(mut stream: &Stream, dials: bool) {
    if !dials {
        // Sends nothing until the test asks for it.
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut byte).unwrap(), 0);
        return say("done");
    }
    // SAFETY: zeroes are a valid sigaction, without SA_RESTART; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let short = Some(Duration::from_millis(50));
    let start = Instant::now();
    assert!(!stream.poll_readable(short).unwrap());
    stream.set_read_timeout(short).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(start.elapsed() >= Duration::from_millis(90));
    stream.set_read_timeout(None).unwrap();
    assert!(stream.set_read_timeout(Some(Duration::ZERO)).is_err());
    for polls in [false, true] {
        // SAFETY: gives the thread's own id.
        let this = unsafe { libc::pthread_self() };
        let (done, stop) = std::sync::mpsc::channel::<()>();
        let sender = thread::spawn(move || {
            // Again and again, as the signal may come before the call.
            while stop.recv_timeout(Duration::from_millis(20)).is_err() {
                // SAFETY: the thread waits for this one to end.
                unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
            }
        });
        let error =
            if polls { stream.poll_readable(None).map(drop) } else { stream.read(&mut [0]).map(drop) };
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Interrupted);
        done.send(()).unwrap();
        sender.join().unwrap();
    }
    stream.write_all(&[1]).unwrap();
    assert!(stream.poll_readable(None).unwrap());
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the end");
    stream.shutdown(Shutdown::Write).unwrap();
    say("done");
}

#[test]
fn who_is_left_by_a_killed_peer_is_told() {
    for with in [&[][..], &[("NATIVE_TCP", "1")]] {
        for does in ["reads", "writes"] {
            let mut victim = Player::new("death", with);
            let survivor =
                Player::new(&format!("death {}", victim.next()), &[with, &[("NATIVE_DOES", does)]].concat());
            let way = if with.is_empty() { "promoted" } else { "by tcp" };
            assert_eq!([survivor.next(), victim.next()], [way, way]);
            assert_eq!(survivor.next(), "ready");
            victim.child.kill().unwrap();
            let end = survivor.next();
            let expected = ["the end", "ConnectionReset", "BrokenPipe"];
            assert!(expected.contains(&end.as_str()), "{does}: {end}");
            survivor.ends_well();
        }
    }
}

/// The listening process is killed while it does nothing, with all buffers full or none.
fn death(mut stream: &Stream, dials: bool) {
    if !dials {
        loop {
            thread::park();
        }
    }
    let error = if env::var("NATIVE_DOES").unwrap() == "reads" {
        say("ready");
        stream.read(&mut [0])
    } else {
        // Writes until the buffers are full.
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let full = loop {
            if let Err(error) = stream.write(&[7; 1000]) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        stream.set_write_timeout(None).unwrap();
        say("ready");
        loop {
            if let Err(error) = stream.write(&[7; 1000]) {
                break Err(error);
            }
        }
    };
    match error {
        Ok(0) => say("the end"),
        Ok(_) => say("bytes that nobody sent"),
        Err(error) => say(format!("{:?}", error.kind())),
    }
    process::exit(0);
}
