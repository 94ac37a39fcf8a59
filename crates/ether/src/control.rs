//! The protocol between `shunt ether stat`, `reload`, `dump`, `stop` and a daemon: one line to its
//! UNIX socket, DIR/host-NN.control. The answer is "ok" or "error: WHY" on a line, then the data.
//! Only the same user and root may ask.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::stats::Report;
use crate::sys::trusted;

/// The requests to a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A [`Report`], as JSON.
    Stat,
    /// Read the table again.
    Reload,
    /// End.
    Stop,
    /// The frames of a net, or of all, as pcapng, until the connection ends.
    Dump {
        /// The net.
        net: Option<String>,
        /// Bytes of each frame.
        snap: usize,
    },
}

impl Request {
    fn line(&self) -> String {
        match self {
            Request::Stat => "stat\n".into(),
            Request::Reload => "reload\n".into(),
            Request::Stop => "stop\n".into(),
            Request::Dump { net, snap } => format!("dump {snap} {}\n", net.as_deref().unwrap_or_default()),
        }
    }

    fn parse(line: &str) -> Option<Request> {
        let mut words = line.split_whitespace();
        let request = match words.next()? {
            "stat" => Request::Stat,
            "reload" => Request::Reload,
            "stop" => Request::Stop,
            "dump" => {
                Request::Dump { snap: words.next()?.parse().ok()?, net: words.next().map(str::to_string) }
            }
            _ => return None,
        };
        words.next().is_none().then_some(request)
    }
}

/// The socket of a host's daemon.
pub fn path(directory: &Path, host: u16) -> PathBuf {
    directory.join(format!("host-{host:02}.control"))
}

/// The sockets of the daemons that meet in `directory`, or of one host's there.
pub fn paths(directory: &Path, host: Option<u16>) -> io::Result<Vec<PathBuf>> {
    if let Some(host) = host {
        return Ok(vec![path(directory, host)]);
    }
    let mut all: Vec<PathBuf> = std::fs::read_dir(directory)?.flatten().map(|entry| entry.path()).collect();
    all.retain(|path| path.extension().is_some_and(|end| end == "control"));
    all.sort();
    Ok(all)
}

/// Sends a request to a daemon. The data behind "ok" is still to be read.
pub fn ask(path: &Path, request: &Request) -> io::Result<BufReader<UnixStream>> {
    let mut stream = UnixStream::connect(path)?;
    stream.write_all(request.line().as_bytes())?;
    let mut answer = BufReader::new(stream);
    let mut first = String::new();
    answer.read_line(&mut first)?;
    match first.trim_end() {
        "ok" => Ok(answer),
        "" => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended without an answer")),
        other => Err(io::Error::other(other.trim_start_matches("error: ").to_string())),
    }
}

/// Asks a daemon for its report.
pub fn stat(path: &Path) -> io::Result<Report> {
    let mut text = String::new();
    ask(path, &Request::Stat)?.read_to_string(&mut text)?;
    serde_json::from_str(&text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// A daemon's socket, removed with this.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Opens it. Fails if a daemon of this host is there.
    pub fn open(directory: &Path, host: u16) -> io::Result<Listener> {
        let path = path(directory, host);
        let said = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        std::fs::create_dir_all(directory).map_err(said)?;
        if UnixStream::connect(&path).is_ok() {
            let what = format!("host {host} runs already: {} is answered", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
        }
        let _ = std::fs::remove_file(&path); // left by one that was killed
        let listener = UnixListener::bind(&path).map_err(said)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(said)?;
        listener.set_nonblocking(true)?;
        Ok(Listener { listener, path })
    }

    /// Its descriptor.
    pub fn fd(&self) -> i32 {
        self.listener.as_raw_fd()
    }

    /// A request, and the stream for the answer. None if there is none, or it is malformed.
    pub fn request(&self) -> Option<(Request, UnixStream)> {
        let (mut stream, _) = self.listener.accept().ok()?;
        let patience = Some(Duration::from_secs(1));
        stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(patience)).ok()?;
        stream.set_write_timeout(patience).ok()?;
        if !trusted(stream.as_raw_fd()) {
            let _ = stream.write_all(b"error: only the daemon's user and root may ask\n");
            return None;
        }
        let mut line = String::new();
        let mut limited = BufReader::new((&stream).take(200));
        limited.read_line(&mut line).ok()?;
        match Request::parse(&line) {
            Some(request) => Some((request, stream)),
            None => {
                let _ = stream.write_all(b"error: not understood: is the command of the daemon's version?\n");
                None
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_line() {
        for request in [
            Request::Stat,
            Request::Reload,
            Request::Stop,
            Request::Dump { net: None, snap: 9 },
            Request::Dump { net: Some("eth-a".into()), snap: 65_535 },
        ] {
            assert_eq!(Request::parse(&request.line()), Some(request));
        }
        for line in ["", "halt", "stat now", "dump", "dump x", "dump 1 a b"] {
            assert_eq!(Request::parse(line), None, "{line}");
        }
    }
}
