//! Two processes of this test's own program, which play roles: libtest runs only the test `role` in
//! them, and a line with an @ is a message to the test. Also the library's counts of them
//! (SHUNT_REPORT).

#![allow(dead_code)] // each test uses a part

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use native::Stream;

#[path = "../../../preload/tests/library/mod.rs"]
mod library;
pub use library::library;

/// Longer than everything that does not hang.
pub const LONG: Duration = Duration::from_secs(60);

/// The role and its arguments, if this process plays one.
pub fn role() -> Option<Vec<String>> {
    Some(env::var("NATIVE_ROLE").ok()?.split(' ').map(String::from).collect())
}

/// Sends a message to the test.
pub fn say(what: impl std::fmt::Display) {
    let mut out = io::stdout().lock();
    writeln!(out, "@{what}").and_then(|()| out.flush()).expect("the test listens");
}

/// A process that plays a role.
pub struct Player {
    pub child: Child,
    lines: mpsc::Receiver<String>,
}

impl Player {
    pub fn new(role: &str, variables: &[(&str, &str)]) -> Player {
        Player::of(&env::current_exe().expect("it has a name"), role, variables)
    }

    pub fn of(program: &Path, role: &str, variables: &[(&str, &str)]) -> Player {
        let mut command = Command::new(program);
        command.args(["--exact", "role", "--nocapture", "--test-threads=1"]);
        Player::spawn(command.env("NATIVE_ROLE", role), variables)
    }

    pub fn spawn(command: &mut Command, variables: &[(&str, &str)]) -> Player {
        let mut child = command
            .env_remove("LD_PRELOAD")
            .env("SHUNT_LIB", library())
            .env("SHUNT_PROMOTE_RATE", "0")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let out = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                match line.split_once('@') {
                    Some((_, said)) => drop(tell.send(said.to_string())),
                    None => eprintln!("{line}"),
                }
            }
        });
        Player { child, lines }
    }

    /// Its next message.
    pub fn next(&self) -> String {
        self.lines.recv_timeout(LONG).expect("it says something before it ends, or hangs")
    }

    /// Whether it sends no more messages.
    pub fn is_silent(&self) -> bool {
        self.lines.try_recv().is_err()
    }

    /// Lets it go on from [`wait_for_test`].
    pub fn go_on(&mut self) {
        let stdin = self.child.stdin.as_mut().expect("it is a pipe");
        stdin.write_all(b"\n").and_then(|()| stdin.flush()).expect("it listens");
    }

    pub fn end(mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status;
            }
            assert!(start.elapsed() < LONG, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn ends_well(self) {
        let status = self.end();
        assert!(status.success(), "it ended with {status}");
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        // Dead already, if all is well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the test says that one may go on.
pub fn wait_for_test() {
    io::stdin().read_exact(&mut [0]).expect("the test says so");
}

/// A file for a test, gone with it.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        Scratch(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", process::id())))
    }

    /// A page for the library's counts.
    pub fn report(name: &str) -> Scratch {
        let scratch = Scratch::new(name);
        let mut page = [0; 4096];
        page[..8].copy_from_slice(&sockets::report::MAGIC.to_ne_bytes());
        fs::write(&scratch.0, page).expect("there is room");
        scratch
    }

    /// One of the counts.
    pub fn count(&self, index: usize) -> u64 {
        let page = fs::read(&self.0).expect("it is there");
        u64::from_ne_bytes(*page[index * 8..].first_chunk().expect("it is a page"))
    }

    pub fn text(&self) -> &str {
        self.0.to_str().expect("it is text")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Numbers that look random (xorshift), the same for the same seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From 1 on; small ones are as frequent as large ones.
    pub fn size(&mut self, most: usize) -> usize {
        let bits = self.next() % u64::from(most.ilog2() + 1);
        (1 + self.next() as usize % (2 << bits)).min(most)
    }
}

/// The bytes that go one way.
pub struct Bytes(Dice, [u8; 8], usize);

impl Bytes {
    pub fn new(seed: u64) -> Bytes {
        Bytes(Dice(seed * 0x9e37_79b9 + 1), [0; 8], 8)
    }

    pub fn fill(&mut self, to: &mut [u8]) {
        for place in to {
            if self.2 == 8 {
                (self.1, self.2) = (self.0.next().to_ne_bytes(), 0);
            }
            *place = self.1[self.2];
            self.2 += 1;
        }
    }

    pub fn check(&mut self, found: &[u8], at: usize) {
        let mut wanted = vec![0; found.len()];
        self.fill(&mut wanted);
        assert!(wanted == found, "wrong bytes in {} after {at}", found.len());
    }
}

/// Whether this end's connections are to stay on TCP, or the other end's (NATIVE_OTHER_TCP).
pub fn stays_on_tcp() -> bool {
    env::var_os("NATIVE_TCP").is_some()
        || env::var_os("NATIVE_OTHER_TCP").is_some()
        || env::var_os("SHUNT_PATH").is_some_and(|path| path == "tcp")
}

/// Round trips that a connection makes before anything else. On an idle machine it is in memory
/// after so many.
pub const ROUNDS: usize = 400;
/// Ends them.
const LAST: u8 = 0xff;

/// Round trips, until the connection is in memory if it is to be.
pub fn warm(stream: &Stream) {
    ping(stream, ROUNDS);
    let start = Instant::now();
    while !stays_on_tcp() && !stream.is_promoted() {
        assert!(start.elapsed() < LONG, "it stays on TCP; {}", native::status());
        ping(stream, ROUNDS);
    }
    ask(stream, LAST);
}

/// The other end of that.
pub fn answer_warm(stream: &Stream) {
    while answer(stream) != LAST {}
}

pub fn ping(stream: &Stream, rounds: usize) {
    (0..rounds).for_each(|round| ask(stream, round as u8 & !1));
}

pub fn pong(stream: &Stream, rounds: usize) {
    for round in 0..rounds {
        assert_eq!(answer(stream), round as u8 & !1);
    }
}

fn ask(mut stream: &Stream, question: u8) {
    stream.write_all(&[question]).expect("it is read");
    let mut answer = [0];
    stream.read_exact(&mut answer).expect("it answers");
    assert_eq!(answer, [!question]);
}

fn answer(mut stream: &Stream) -> u8 {
    let mut question = [0];
    stream.read_exact(&mut question).expect("it asks");
    stream.write_all(&[!question[0]]).expect("it reads");
    question[0]
}
