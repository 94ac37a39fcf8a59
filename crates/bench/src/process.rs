//! Child processes: started plain or under Shunt, on a processor of their own, as another user
//! where need be. None is left behind: dropping one stops it, and the kernel stops it if this
//! process dies first.

use crate::error::{Error, Result, failed};
use crate::signals;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The user for programs that must not run as root.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// A program about to be started.
#[derive(Debug, Clone)]
pub struct Launch {
    program: PathBuf,
    args: Vec<OsString>,
    preload: Option<PathBuf>,
    cpu: Option<usize>,
    user: Option<User>,
    directory: Option<PathBuf>,
    namespace: Option<PathBuf>,
    env: Vec<(OsString, OsString)>,
    before: Vec<OsString>,
    stop: i32,
}

impl Launch {
    pub fn new(program: impl Into<PathBuf>) -> Launch {
        let program = program.into();
        Launch {
            program,
            args: vec![],
            preload: None,
            cpu: None,
            user: None,
            directory: None,
            namespace: None,
            env: vec![],
            before: vec![],
            stop: libc::SIGTERM,
        }
    }

    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Launch {
        self.args.extend(args.into_iter().map(|a| a.as_ref().to_os_string()));
        self
    }

    /// With Shunt's library in front of libc, or plain.
    pub fn preload(mut self, library: Option<&Path>) -> Launch {
        self.preload = library.map(Path::to_path_buf);
        self
    }

    /// On this processor only.
    pub fn cpu(mut self, cpu: Option<usize>) -> Launch {
        self.cpu = cpu;
        self
    }

    pub fn user(mut self, user: Option<User>) -> Launch {
        self.user = user;
        self
    }

    pub fn directory(mut self, directory: &Path) -> Launch {
        self.directory = Some(directory.to_path_buf());
        self
    }

    /// In this network namespace: a file of /run/netns.
    pub fn namespace(mut self, namespace: Option<&Path>) -> Launch {
        self.namespace = namespace.map(Path::to_path_buf);
        self
    }

    /// Where programs of several networks meet.
    pub fn meeting(self, folder: Option<&Path>) -> Launch {
        match folder {
            Some(folder) => self.env("SHUNT_MEETING", folder),
            None => self,
        }
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Launch {
        self.env.push((name.into(), value.as_ref().to_os_string()));
        self
    }

    /// Behind a command that starts it, as `ssh HOST`.
    pub fn behind<S: AsRef<OsStr>>(mut self, words: &[S]) -> Launch {
        self.before = words.iter().map(|word| word.as_ref().to_os_string()).collect();
        self
    }

    /// The signal that asks this program to end; SIGTERM by default.
    pub fn stop_with(mut self, signal: i32) -> Launch {
        self.stop = signal;
        self
    }

    pub fn start(self) -> Result<Process> {
        let name = self.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let errors = unnamed_file()?;
        let mut words = self.before.iter().map(OsString::as_os_str).chain([self.program.as_os_str()]);
        let mut command = Command::new(words.next().expect("the program at least"));
        command.args(words).args(&self.args).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(errors.try_clone().map_err(failed("cannot duplicate a descriptor"))?);
        // A plain run is plain, even if this command itself runs under Shunt.
        match &self.preload {
            Some(library) => command.env("LD_PRELOAD", library),
            None => command.env_remove("LD_PRELOAD"),
        };
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        let (cpu, stop, parent) = (self.cpu, self.stop, std::process::id());
        let namespace = match &self.namespace {
            Some(path) => Some(File::open(path).map_err(failed(format!("cannot open {}", path.display())))?),
            None => None,
        };
        // SAFETY: between fork and exec only system calls are made, on values made before.
        unsafe { command.pre_exec(move || prepare_child(cpu, namespace.as_ref(), stop, parent)) };
        let mut child = command.spawn().map_err(failed(format!("cannot start {name}")))?;
        let stdout = child.stdout.take().expect("stdout was asked to be a pipe above");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n').map_while(std::result::Result::ok) {
                // After the process was dropped nobody receives: its output is lost.
                let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
            }
        });
        Ok(Process { name, child, lines, errors, stop: self.stop, ended: None })
    }

    /// Starts it and waits for its end; an exit status other than zero is an error.
    pub fn run(self, patience: Duration) -> Result<Output> {
        self.start()?.finish(patience)
    }
}

fn prepare_child(
    cpu: Option<usize>,
    namespace: Option<&File>,
    stop: i32,
    parent: u32,
) -> std::io::Result<()> {
    if let Some(namespace) = namespace {
        enter(namespace)?;
    }
    if let Some(cpu) = cpu {
        pin(cpu)?;
    }
    // SAFETY: plain system calls.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, stop);
        if libc::getppid() as u32 != parent {
            libc::_exit(127);
        }
    }
    Ok(())
}

/// Keeps the calling thread, and what it starts, on one processor.
pub fn pin(cpu: usize) -> std::io::Result<()> {
    // SAFETY: plain system calls; the set is a local of the size given, the CPU index is checked
    // against it.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if cpu < libc::CPU_SETSIZE as usize {
            libc::CPU_SET(cpu, &mut set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Puts the calling thread, and what it starts, into a network namespace.
pub fn enter(namespace: &File) -> std::io::Result<()> {
    // SAFETY: a plain system call on a descriptor that is open.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Everything a finished program printed, and the processor time of it and the children it waited
/// for.
#[derive(Debug)]
pub struct Output {
    pub lines: Vec<String>,
    pub cpu_ns: u64,
}

pub struct Process {
    name: String,
    child: Child,
    lines: Receiver<String>,
    errors: File,
    stop: i32,
    /// Status and processor time, once it has been waited for.
    ended: Option<(ExitStatus, u64)>,
}

impl Process {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The next line of output. The end of the program or a long silence is an error.
    pub fn line(&mut self, patience: Duration) -> Result<String> {
        match self.next_line(Instant::now() + patience)? {
            Some(line) => Ok(line),
            None => {
                let status = self.wait(Instant::now() + Duration::from_secs(5))?.0;
                Err(self.failure(&format!("ended early ({status})")))
            }
        }
    }

    /// Sends a line to its standard input.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.child.stdin.as_mut().expect("stdin was asked to be a pipe");
        writeln!(stdin, "{line}").map_err(failed(format!("cannot write to {}", self.name)))
    }

    pub fn is_running(&mut self) -> bool {
        !self.reap(libc::WNOHANG)
    }

    /// Waits for its end; an exit status other than zero is an error.
    pub fn finish(mut self, patience: Duration) -> Result<Output> {
        let end = Instant::now() + patience;
        let mut lines = Vec::new();
        while let Some(line) = self.next_line(end)? {
            lines.push(line);
        }
        let (status, cpu_ns) = self.wait(end)?;
        if status.success() {
            Ok(Output { lines, cpu_ns })
        } else {
            Err(self.failure(&format!("failed ({status})")))
        }
    }

    /// `name: what`, with the end of its stderr.
    pub fn failure(&mut self, what: &str) -> Error {
        let mut said = String::new();
        let read = self.errors.seek(SeekFrom::Start(0)).and_then(|_| self.errors.read_to_string(&mut said));
        let tail: Vec<&str> = said.trim().lines().rev().take(3).collect();
        let tail = tail.into_iter().rev().collect::<Vec<_>>().join(" | ");
        match read {
            Ok(_) if !tail.is_empty() => Error::Failed(format!("{} {what}: {tail}", self.name)),
            _ => Error::Failed(format!("{} {what}", self.name)),
        }
    }

    /// `None` at the end of its output.
    fn next_line(&mut self, end: Instant) -> Result<Option<String>> {
        loop {
            signals::check()?;
            let slice = end.saturating_duration_since(Instant::now()).min(Duration::from_millis(100));
            match self.lines.recv_timeout(slice) {
                Ok(line) => return Ok(Some(line)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= end => {
                    return Err(self.failure("does not get on: no end and no output in time"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn wait(&mut self, end: Instant) -> Result<(ExitStatus, u64)> {
        while !self.reap(libc::WNOHANG) {
            signals::check()?;
            if Instant::now() >= end {
                return Err(self.failure("does not end"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(self.ended.expect("reap() said that it has ended"))
    }

    /// True once the process has ended and its status is known.
    fn reap(&mut self, flags: i32) -> bool {
        if self.ended.is_some() {
            return true;
        }
        let mut status = 0;
        // SAFETY: the pid is our child's, not waited for yet; wait4 writes to the two locals only.
        let (result, usage) = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            (libc::wait4(self.pid(), &mut status, flags, &mut usage), usage)
        };
        if result == self.pid() {
            let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1000;
            self.ended = Some((ExitStatus::from_raw(status), ns(usage.ru_utime) + ns(usage.ru_stime)));
        }
        self.ended.is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(5);
        for signal in [self.stop, libc::SIGKILL] {
            if self.reap(libc::WNOHANG) {
                return;
            }
            // SAFETY: our own child, which has not been waited for: the pid is still its.
            unsafe { libc::kill(self.pid(), signal) };
            while signal != libc::SIGKILL && Instant::now() < end && !self.reap(libc::WNOHANG) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.reap(0);
    }
}

/// A file without a name for a program's stderr: a pipe would have to be emptied.
fn unnamed_file() -> Result<File> {
    use std::os::fd::FromRawFd;
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"stderr".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(failed("no memory for a program's messages")(std::io::Error::last_os_error()));
    }
    // SAFETY: a descriptor just made, owned by nobody else.
    Ok(unsafe { File::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Launch {
        Launch::new("/bin/sh").args(["-c", script])
    }

    #[test]
    fn output_and_failure_are_told() {
        let output = sh("echo one; echo two").run(Duration::from_secs(10)).unwrap();
        assert_eq!(output.lines, ["one", "two"]);
        let error = sh("echo out; echo trouble >&2; exit 3").run(Duration::from_secs(10)).unwrap_err();
        assert!(error.to_string().contains("trouble") && error.to_string().contains('3'), "{error}");
    }

    #[test]
    fn a_process_that_hangs_is_given_up_and_stopped() {
        let began = Instant::now();
        let error = sh("exec sleep 60").run(Duration::from_millis(200)).unwrap_err();
        assert!(error.to_string().contains("does not get on"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn talking_to_a_process() {
        let mut process = sh("read word; echo \"got $word\"").start().unwrap();
        process.say("this").unwrap();
        assert_eq!(process.line(Duration::from_secs(10)).unwrap(), "got this");
        assert!(process.line(Duration::from_secs(10)).is_err(), "it has ended");
    }

    #[test]
    fn a_preload_is_set_and_a_plain_run_has_none() {
        let show = "echo \"[$LD_PRELOAD]\"";
        let plain = sh(show).preload(None).run(Duration::from_secs(10)).unwrap();
        assert_eq!(plain.lines, ["[]"]);
    }
}
