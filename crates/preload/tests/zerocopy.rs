//! `shunt_zerocopy::Reader` where it is meant for: in a program under libshunt.so. The test starts
//! itself twice more, as the two ends of a connection, without the library, with it, and over
//! Virtual Interfaces; the reading end checks what comes and says how.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::{env, thread, time};

use library::library;

mod library;

/// So many bytes go, in pieces of many sizes.
const BYTES: usize = 3_000_000;
/// So many round trips before: they are promoted by then.
const ROUNDS: usize = 400;

fn main() {
    match env::args().nth(1) {
        Some(port) if port.parse::<u16>().is_ok() => write(port.parse().expect("a number")),
        Some(word) if word == "read" => read(),
        _ => {
            assert_eq!(run(&[]), "copied", "nobody lends");
            let shunt = ("LD_PRELOAD", library().to_str().expect("its name is text"));
            assert_eq!(run(&[shunt]), "lent");
            assert_eq!(run(&[shunt, ("SHUNT_STREAM", "via")]), "lent");
            assert_eq!(run(&[shunt, ("SHUNT_PATH", "tcp")]), "copied");
            println!("lent where Shunt carries the connection, copied elsewhere: ok");
        }
    }
}

/// Both ends with these variables: how the last bytes were read.
fn run(variables: &[(&str, &str)]) -> String {
    let program = env::current_exe().expect("it has a name");
    let mut reader = Command::new(&program)
        .arg("read")
        .env("SHUNT_PROMOTE_RATE", "0")
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(reader.stdout.take().expect("it is a pipe")).lines();
    let mut line = || lines.next().expect("it says something").expect("it can be read");
    let mut writer = Command::new(&program)
        .arg(line())
        .env("SHUNT_PROMOTE_RATE", "0")
        .envs(variables.iter().copied())
        .spawn()
        .expect("it starts");
    let how = line();
    assert!(reader.wait().expect("it ends").success(), "the reader, with {variables:?}");
    assert!(writer.wait().expect("it ends").success(), "the writer, with {variables:?}");
    how
}

fn byte(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

fn write(port: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    for _ in 0..ROUNDS {
        stream.write_all(&[0]).expect("it is read");
        stream.read_exact(&mut [0]).expect("it answers");
    }
    let bytes: Vec<u8> = (0..BYTES).map(byte).collect();
    let (mut at, mut size) = (0, 1);
    while at < BYTES {
        let part = size.min(BYTES - at);
        stream.write_all(&bytes[at..at + part]).expect("it is read");
        at += part;
        size = size * 3 % 100_003 + 1;
    }
}

fn read() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there are ports");
    println!("{}", listener.local_addr().expect("it is bound").port());
    let (mut stream, _) = listener.accept().expect("the writer comes");
    for _ in 0..ROUNDS {
        stream.read_exact(&mut [0]).expect("it writes");
        stream.write_all(&[0]).expect("it reads");
    }
    // SAFETY: the other end is this program, too, and writes by write() alone.
    let mut reader = unsafe { shunt_zerocopy::Reader::new(stream) };
    let (mut at, mut lent, mut turn) = (0, 0, 0usize);
    loop {
        let bytes = reader.fill_buf().expect("the connection holds");
        if bytes.is_empty() {
            break;
        }
        // Now all, now a part, and what is left is there again.
        let count = if turn % 3 == 0 { bytes.len() } else { bytes.len().div_ceil(2) };
        assert!(bytes.iter().enumerate().all(|(i, found)| *found == byte(at + i)), "wrong after {at}");
        lent += if reader.is_lent() { count } else { 0 };
        reader.consume(count);
        at += count;
        turn += 1;
        if turn == 5 {
            // A reader that is behind, yet not as long as a writer waits before it goes on by tcp
            // (20 ms).
            thread::sleep(time::Duration::from_millis(5));
        }
        if turn % 50 == 0 {
            let mut some = [0; 100];
            let count = reader.read(&mut some).expect("the connection holds");
            assert!(
                some[..count].iter().enumerate().all(|(i, found)| *found == byte(at + i)),
                "read at {at}"
            );
            at += count;
        }
    }
    assert_eq!(at, BYTES);
    // Not "most of them": on a busy machine a writer may find that its reader has stalled, and
    // leave memory.
    println!("{}", if lent > 0 { "lent" } else { "copied" });
}
