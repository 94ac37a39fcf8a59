//! Starting the program: in place of this process, or as its child with this process passing on
//! what happens to it. The program must find signals as this process found them, whatever Rust's
//! runtime and we do to them in between.

use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_char, c_int, pid_t};
use rustix::pipe::PipeFlags;

/// The signals that a parent passes on to the program.
const PASSED_ON: [c_int; 9] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGTSTP,
];

/// A program, ready to be started.
pub struct Launch {
    file: CString,
    args: Vec<CString>,
    env: Vec<CString>,
}

impl Launch {
    /// `None` if an argument holds a NUL byte, which none from a command line can.
    pub fn new(file: &Path, args: &[&OsString], env: Vec<(OsString, OsString)>) -> Option<Launch> {
        let c = |text: &OsStr| CString::new(text.as_bytes()).ok();
        let entry = |(name, value): (OsString, OsString)| {
            CString::new([name.into_vec(), value.into_vec()].join(&b'=')).ok()
        };
        Some(Launch {
            file: c(file.as_os_str())?,
            args: args.iter().map(|arg| c(arg)).collect::<Option<_>>()?,
            env: env.into_iter().map(entry).collect::<Option<_>>()?,
        })
    }

    /// Replaces this process by the program. Returns only if that fails.
    pub fn exec(&self) -> io::Error {
        replace(libc::SIGPIPE, SIGPIPE_AT_START.load(Ordering::Relaxed));
        let error = execve(&self.file, &self.args, &self.env);
        if error.raw_os_error() != Some(libc::ENOEXEC) || self.is_elf() {
            return error;
        }
        // A script without #!: a shell runs it, as execvp() has it.
        let shell = c"/bin/sh".to_owned();
        let mut args = vec![shell.clone(), self.file.clone()];
        args.extend(self.args.iter().skip(1).cloned());
        execve(&shell, &args, &self.env)
    }

    fn is_elf(&self) -> bool {
        let mut head = [0; 4];
        let file = std::fs::File::open(OsStr::from_bytes(self.file.as_bytes()));
        file.and_then(|mut file| file.read_exact(&mut head)).is_ok() && head == *b"\x7fELF"
    }

    /// Starts the program as a child, passes signals on, and returns its exit status, 128+N for
    /// signal N, once it has ended. An error if it cannot be executed.
    pub fn supervise(&self) -> io::Result<u8> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let mut awaited = signal_set(&PASSED_ON);
        // SAFETY: `awaited` is an initialised set, SIGCHLD a valid signal.
        unsafe { libc::sigaddset(&mut awaited, libc::SIGCHLD) };
        let mut mask_at_start = signal_set(&[]);
        // SAFETY: both sets are initialised and outlive the call.
        unsafe { libc::sigprocmask(libc::SIG_BLOCK, &awaited, &mut mask_at_start) };
        let child_at_start = replace(libc::SIGCHLD, libc::SIG_DFL);
        // SAFETY: this process has one thread, so the child may do all that the parent may.
        let child = unsafe { libc::fork() };
        if child < 0 {
            return Err(io::Error::last_os_error());
        }
        if child == 0 {
            replace(libc::SIGCHLD, child_at_start);
            // SAFETY: puts back what was saved above.
            unsafe { libc::sigprocmask(libc::SIG_SETMASK, &mask_at_start, std::ptr::null_mut()) };
            let error = self.exec();
            let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
            let _ = rustix::io::write(&writer, &errno.to_ne_bytes());
            // SAFETY: ends the child without running anything that belongs to the parent.
            unsafe { libc::_exit(127) };
        }
        drop(writer);
        let status = attend(child, &awaited)?;
        let mut errno = [0; 4];
        match rustix::io::read(&reader, &mut errno) {
            Ok(4) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
            _ => Ok(status), // nothing came: exec closed the pipe
        }
    }
}

/// Waits for the child's end, passing signals on meanwhile.
fn attend(child: pid_t, awaited: &libc::sigset_t) -> io::Result<u8> {
    loop {
        // SAFETY: siginfo_t is plain data, for which zeros are valid.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are to live, initialised values.
        let signal = unsafe { libc::sigwaitinfo(awaited, &mut info) };
        if signal == libc::SIGCHLD {
            if let Some(status) = reap(child)? {
                return Ok(status);
            }
        } else if signal > 0 && !(info.si_code == libc::SI_KERNEL && same_group(child)) {
            // What the terminal sends (^C, ^Z, a new size), it has sent to the child as well, if
            // that is in our group.
            // SAFETY: the child is ours and not yet waited for, so its id names no other process.
            unsafe { libc::kill(child, signal) };
        }
    }
}

/// The child's exit status if it has ended. If it was stopped from the terminal, stops this process
/// as well, so that the shell notices; the SIGCONT that ends this is passed on as any.
fn reap(child: pid_t) -> io::Result<Option<u8>> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is live; the child is ours.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG | libc::WUNTRACED) } {
            0 => return Ok(None),
            -1 => return Err(io::Error::last_os_error()),
            _ if libc::WIFEXITED(status) => return Ok(Some(libc::WEXITSTATUS(status) as u8)),
            _ if libc::WIFSIGNALED(status) => return Ok(Some(128 + libc::WTERMSIG(status) as u8)),
            _ => {
                let by_terminal =
                    [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&libc::WSTOPSIG(status));
                if by_terminal && same_group(child) && std::fs::File::open("/dev/tty").is_ok() {
                    // SAFETY: stops this process, nothing else.
                    unsafe { libc::raise(libc::SIGSTOP) };
                }
            }
        }
    }
}

fn same_group(child: pid_t) -> bool {
    // SAFETY: neither call touches memory.
    unsafe { libc::getpgid(child) == libc::getpgrp() }
}

fn signal_set(signals: &[c_int]) -> libc::sigset_t {
    // SAFETY: sigset_t is plain data; sigemptyset initialises it, and the signals are valid.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for &signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Sets what a signal does, SIG_DFL, SIG_IGN or what this found before, and returns what it did.
fn replace(signal: c_int, disposition: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: sigaction is plain data, for which zeroes are valid; none of the dispositions is a
    // handler of ours.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = (std::mem::zeroed(), std::mem::zeroed());
        new.sa_sigaction = disposition;
        libc::sigaction(signal, &new, &mut old);
        old.sa_sigaction
    }
}

fn execve(file: &CString, args: &[CString], env: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (args, env) = (pointers(args), pointers(env));
    // SAFETY: C strings and null-terminated arrays of them, all alive until the call returns or
    // never does.
    unsafe { libc::execve(file.as_ptr(), args.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// The disposition of SIGPIPE that this process was started with: Rust's runtime ignores the signal
/// before main() runs, and an ignored signal stays ignored over exec.
static SIGPIPE_AT_START: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);

#[used]
// SAFETY: a constructor that calls one function of libc, and needs nothing that main() has to set
// up first.
#[unsafe(link_section = ".init_array")]
static RECORD: extern "C" fn() = {
    extern "C" fn record() {
        let found = replace(libc::SIGPIPE, libc::SIG_DFL);
        replace(libc::SIGPIPE, found);
        SIGPIPE_AT_START.store(found, Ordering::Relaxed);
    }
    record
};
