//! Things that a process does beside its streams, and that know nothing of them: fork(), start
//! programs, exec(), close other descriptors, load other copies of the library.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{env, thread};

use native::{Listener, Path, Status, Stream};
use sockets::report::at;

use two::*;

mod two;

#[test]
fn role() {
    let Some(words) = two::role() else { return };
    let path = if env::var_os("NATIVE_TCP").is_some() { Path::Tcp } else { Path::Auto };
    match (words[0].as_str(), words.get(1).and_then(|port| port.parse().ok())) {
        ("serve", None) => serve(path),
        ("status", None) => status(),
        ("forks", Some(port)) => forks(port, path),
        ("execs", Some(port)) => execs(port, path),
        ("closes", Some(port)) => closes(port, path),
        ("copies", Some(port)) => copies(port, path),
        ("lends", None) => lends(),
        _ => unreachable!("no such role"),
    }
}

/// Accepts one connection after the other. Makes round trips, then checks all bytes until the end,
/// and reports how many they were, and how the stream ended.
fn serve(path: Path) {
    let listener = Listener::bind("127.0.0.1:0", path).unwrap();
    say(listener.local_addr().unwrap().port());
    loop {
        let (mut stream, _) = listener.accept().unwrap();
        thread::spawn(move || {
            answer_warm(&stream);
            let (mut bytes, mut at, mut buffer) = (Bytes::new(1), 0, vec![0; 50_000]);
            let how = loop {
                match stream.read(&mut buffer) {
                    Ok(0) => break "the end".to_string(),
                    Ok(count) => {
                        bytes.check(&buffer[..count], at);
                        at += count;
                    }
                    Err(error) => break format!("{:?}", error.kind()),
                }
            };
            say(format!("{at} bytes, {how}"));
        });
    }
}

const SENT: usize = 500_000;

/// The bytes that [`serve`] expects.
fn send_all(mut stream: &Stream) {
    let mut bytes = vec![0; SENT];
    Bytes::new(1).fill(&mut bytes);
    bytes.chunks(7777).for_each(|part| stream.write_all(part).unwrap());
}

fn dial(port: u16, path: Path) -> Stream {
    let stream = Stream::connect(("127.0.0.1", port), path, None).unwrap();
    warm(&stream);
    assert_eq!(stream.is_promoted(), path == Path::Auto, "{}", native::status());
    stream
}

/// A role against [`serve`], by memory, by TCP, and under Shunt.
fn each_way(role: &str, mut expect: impl FnMut(&Player, &mut Player)) {
    let shunt = [("LD_PRELOAD", library().to_str().unwrap())];
    for with in [&[][..], &[("NATIVE_TCP", "1")], &shunt] {
        eprintln!("{role} {with:?}");
        let server = Player::new("serve", with);
        let mut player = Player::new(&format!("{role} {}", server.next()), with);
        expect(&server, &mut player);
        player.ends_well();
        assert!(server.is_silent());
    }
}

fn all(how: &str) -> String {
    format!("{SENT} bytes, {how}")
}

#[test]
fn children_leave_their_parents_streams_alone() {
    each_way("forks", |server, player| {
        // The first is the child's own stream, while the parent's is open.
        assert_eq!(server.next(), all("the end"));
        assert_eq!(player.next(), "dropped");
        // Its children live on; the peer sees the end all the same.
        assert_eq!(server.next(), all("the end"));
        player.go_on();
    });
}

fn forks(port: u16, path: Path) {
    let mut stream = dial(port, path);
    // By posix_spawn or vfork, and by fork() and exec.
    let spawn = |command: &mut Command| {
        command.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
    };
    let mut by_fork = Command::new("sleep");
    // SAFETY: nothing is done between fork and exec; that there is something only keeps std from
    // using posix_spawn.
    unsafe { by_fork.pre_exec(|| Ok(())) };
    let mut programs = [spawn(&mut Command::new("sleep")), spawn(&mut by_fork)];
    let half = SENT / 2;
    let mut bytes = vec![0; SENT];
    Bytes::new(1).fill(&mut bytes);
    stream.write_all(&bytes[..half]).unwrap();
    // SAFETY: the child makes a stream of its own, says nothing by std's locks, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // Where the test fails nothing stays behind.
        // SAFETY: asks for a signal, no more.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        // The inherited stream is closed, and its attempts leave no trace.
        assert_eq!(stream.write(b"from the child").unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert_eq!(stream.read(&mut [0]).unwrap_err().raw_os_error(), Some(libc::EBADF));
        drop(stream);
        send_all(&dial(port, path));
        loop {
            thread::park();
        }
    }
    // A second child that ends by _exit(), as those of Python's multiprocessing do.
    // SAFETY: the child ends at once.
    let short = unsafe { libc::fork() };
    if short == 0 {
        // SAFETY: ends it.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: it is our child.
    assert_eq!(unsafe { libc::waitpid(short, std::ptr::null_mut(), 0) }, short);
    stream.write_all(&bytes[half..]).unwrap();
    drop(stream);
    say("dropped");
    wait_for_test();
    // SAFETY: it is our child.
    unsafe { libc::kill(child, libc::SIGKILL) };
    programs.iter_mut().for_each(|program| program.kill().and_then(|()| program.wait()).map(drop).unwrap());
}

#[test]
fn a_program_that_becomes_another_one_has_sent_all() {
    each_way("execs", |server, player| {
        assert_eq!(player.next(), "the next program");
        assert_eq!(server.next(), all("the end"));
        player.go_on();
    });
}

fn execs(port: u16, path: Path) {
    let stream = dial(port, path);
    send_all(&stream);
    let error = Command::new("sh").args(["-c", "echo '@the next program'; read line"]).exec();
    panic!("{error}");
}

#[test]
fn who_closes_what_is_not_his_gets_no_bytes_of_ours() {
    // Under Shunt close_range() spares Shunt's descriptors; here it is a system call that nobody
    // intercepts.
    for with in [&[][..], &[("NATIVE_TCP", "1")]] {
        let server = Player::new("serve", with);
        let player = Player::new(&format!("closes {}", server.next()), with);
        // The first stream: all bytes that came were right (`serve` checks them), and then came an
        // end.
        let first = server.next();
        assert!(first.starts_with("0 bytes, "), "{first}");
        assert_eq!(server.next(), all("the end"));
        player.ends_well();
    }
}

fn closes(port: u16, path: Path) {
    let mut stream = dial(port, path);
    let number = numbers_of_connections(port)[0];
    let others: Vec<i32> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(|&fd| fd > libc::STDERR_FILENO && fd != number)
        .collect();
    assert!(path == Path::Tcp || others.len() > 4, "what Shunt has open: {others:?}");
    // SAFETY: std has no descriptors here but those of the streams.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }, 0);
    let scratch = Scratch::new("closed");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&scratch.0).unwrap();
    file.set_len(16 << 20).unwrap();
    // SAFETY: the file's descriptor is open.
    let file_high = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 500) };
    assert!(file_high >= 500);
    drop(file);
    // All numbers but the stream's now belong to a file of ours.
    for &fd in &others {
        // SAFETY: these numbers are free.
        assert_eq!(unsafe { libc::dup2(file_high, fd) }, fd);
    }
    // That number is given to another stream.
    let second = dial(port, path);
    assert_eq!(numbers_of_connections(port), [number]);
    for result in [stream.write(b"wrong").map(drop), stream.read(&mut [0]).map(drop)] {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
    // Dropping it does not close the file that has its number now.
    drop(stream);
    send_all(&second);
    drop(second);
    // Peers that have gone, links that are freed, a child: none of that touches the files.
    let third = dial(port, path);
    send_all(&third);
    drop(third);
    let content = fs::read(&scratch.0).unwrap();
    assert!(content.len() == 16 << 20 && content.iter().all(|&byte| byte == 0), "somebody wrote to the file");
    // SAFETY: asks only.
    assert_eq!(unsafe { libc::lseek(file_high, 0, libc::SEEK_CUR) }, 0, "somebody has read from the file");
    let is_open = |&fd: &i32| {
        // SAFETY: asks only.
        unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
    };
    assert!(others.iter().all(is_open), "somebody has closed the file");
}

/// This process's connections to `port`.
fn numbers_of_connections(port: u16) -> Vec<i32> {
    let is_it = |fd: &i32| {
        // SAFETY: zeroes are a valid address, which is valid for a write of its length.
        unsafe {
            let mut address: libc::sockaddr_in = std::mem::zeroed();
            let mut len = size_of::<libc::sockaddr_in>() as u32;
            libc::getpeername(*fd, (&raw mut address).cast(), &mut len) == 0
                && u16::from_be(address.sin_port) == port
        }
    };
    (3..100).filter(is_it).collect()
}

#[test]
fn a_process_has_one_library_only() {
    each_way("copies", |server, _| assert_eq!(server.next(), all("the end")));
}

fn copies(port: u16, path: Path) {
    let preloaded = env::var_os("LD_PRELOAD").is_some();
    // Another part of the process has loaded a copy, under the name that a wheel would give it.
    let scratch = Scratch::new("libshunt-copies");
    fs::create_dir_all(&scratch.0).unwrap();
    let [theirs, ours] = ["libshunt-0123abcd.so", "libshunt.so"].map(|name| scratch.0.join(name));
    for copy in [&theirs, &ours] {
        fs::copy(library(), copy).unwrap();
    }
    if !preloaded {
        let name = CString::new(theirs.to_str().unwrap()).unwrap();
        // SAFETY: it is our library.
        assert!(!unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }.is_null());
    }
    let status = native::load(&ours);
    let expected = if preloaded { Status::Preloaded } else { Status::Loaded(theirs.clone()) };
    assert_eq!(status, expected);
    send_all(&dial(port, path));
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut files: Vec<&str> = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .filter(|file| file.contains("libshunt") && file.contains(".so"))
        .collect();
    files.dedup();
    assert_eq!(files.len(), 1, "{files:?}");
}

#[test]
fn what_the_library_calls_of_itself_is_its_own() {
    let report = Scratch::report("lends");
    Player::new("lends", &[("SHUNT_REPORT", report.text())]).ends_well();
    assert_eq!(report.count(at::PROMOTED), 2);
}

/// shunt_recv_zc() calls recv(): it must get the hook, also where libc comes first in the order of
/// names.
fn lends() {
    let listener = Listener::bind("127.0.0.1:0", Path::Auto).unwrap();
    let to = listener.local_addr().unwrap();
    let other = thread::spawn(move || {
        let mut stream = Stream::connect(to, Path::Auto, None).unwrap();
        warm(&stream);
        stream.write_all(b"lent").unwrap();
        pong(&stream, 1);
    });
    let (mut stream, from) = listener.accept().unwrap();
    answer_warm(&stream);
    // A process that is connected to itself uses memory, too.
    assert!(stream.is_promoted() && stream.poll_readable(None).unwrap());
    let Status::Loaded(path) = native::status() else { panic!("{}", native::status()) };
    let name = CString::new(path.to_str().unwrap()).unwrap();
    let mut data = std::ptr::null();
    // SAFETY: the library is loaded, and this is the function that shunt.h declares; what is lent
    // is not taken meanwhile.
    unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        let recv = libc::dlsym(library, c"shunt_recv_zc".as_ptr());
        let recv: unsafe extern "C" fn(i32, *mut *const u8, usize, i32) -> isize = std::mem::transmute(recv);
        assert_eq!(recv(numbers_of_connections(from.port())[0], &mut data, 100, libc::MSG_ZEROCOPY), 4);
        assert_eq!(std::slice::from_raw_parts(data, 4), b"lent");
    }
    stream.read_exact(&mut [0; 4]).unwrap();
    // And libc's streams are as they were: the 15th function of their table reads.
    // SAFETY: glibc's table has 21 words, and both names end with a zero.
    unsafe {
        let table: *const usize =
            libc::dlsym(libc::RTLD_DEFAULT, c"_IO_file_jumps".as_ptr()).cast_const().cast();
        let reads = libc::dlsym(libc::RTLD_DEFAULT, c"_IO_file_read".as_ptr());
        assert!(!table.is_null() && *table.add(14) == reads as usize);
    }
    ping(&stream, 1);
    other.join().unwrap();
}

fn status() {
    say(native::status());
    let listener = Listener::bind("127.0.0.1:0", Path::Auto).unwrap();
    let to = listener.local_addr().unwrap();
    let other = thread::spawn(move || {
        let stream = Stream::connect(to, Path::Auto, None).unwrap();
        ping(&stream, ROUNDS);
    });
    let (stream, _) = listener.accept().unwrap();
    pong(&stream, ROUNDS);
    assert!(!stream.is_promoted());
    other.join().unwrap();
}

/// The program, where no library lies about.
fn alone() -> (Scratch, PathBuf) {
    let scratch = Scratch::new("alone");
    fs::create_dir_all(scratch.0.join("bin")).unwrap();
    let program = scratch.0.join("bin/test");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    (scratch, program)
}

#[test]
fn without_the_library_all_goes_by_tcp_and_it_says_why() {
    let (scratch, program) = alone();
    let missing = scratch.0.join("missing.so");
    let other = scratch.0.join("other.so");
    let content = fs::read(library()).unwrap();
    fs::write(&other, with_version(&content, "9.8.7")).unwrap();
    let text = scratch.0.join("text.so");
    File::create(&text).unwrap().write_all(b"no library").unwrap();
    let this = env!("CARGO_PKG_VERSION");
    for (named, why) in [
        (missing, "No such file or directory".to_string()),
        (other, format!("is version 9.8.7, this is {this}")),
        (text, "is no shared library for this machine".to_string()),
    ] {
        let named = named.to_str().unwrap();
        let player = Player::of(&program, "status", &[("SHUNT_LIB", named)]);
        let said = player.next();
        if said.contains("is loaded for these sockets") {
            eprintln!("not checked: Shunt is installed here, {said}");
            return;
        }
        assert!(
            said.starts_with("everything goes by TCP: ") && said.contains(&format!("{named} {why}")),
            "{said}"
        );
        player.ends_well();
    }
}

#[test]
fn the_library_is_found_where_it_is_installed() {
    let (scratch, program) = alone();
    for dir in ["lib/shunt", "bin"] {
        let place = scratch.0.join(dir).join("libshunt.so");
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(library(), &place).unwrap();
        let with = [("SHUNT_LIB", ""), ("SHUNT_PATH", "tcp")];
        let player = Player::of(&program, "status", &with);
        assert_eq!(player.next(), format!("{} is loaded for these sockets", place.display()));
        player.ends_well();
        fs::remove_file(&place).unwrap();
    }
}

/// The library, with another version written into it.
fn with_version(library: &[u8], version: &str) -> Vec<u8> {
    let (from, to) = (format!("{}\0", env!("CARGO_PKG_VERSION")), format!("{version}\0"));
    assert_eq!(from.len(), to.len());
    let mut changed = library.to_vec();
    let places: Vec<usize> =
        (0..library.len() - from.len()).filter(|&at| library[at..].starts_with(from.as_bytes())).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|&at| changed[at..at + to.len()].copy_from_slice(to.as_bytes()));
    changed
}
