//! A stream of bytes each way over a link, by the rings that sockets use: two processes of this
//! program, here or on two hosts. Only `shunt bench ofi` and the tests between kernels run it, so
//! help does not mention it. By hand:
//!
//! ```text
//! shunt bench exchange server --ofi any --measure latency --size 64
//!     prints an address
//! shunt bench exchange client --ofi ADDRESS --measure latency --size 64
//!     half a round trip twice, in nanoseconds
//! shunt bench exchange client --ofi ADDRESS --measure bandwidth --size 65536
//!     one way, in bytes a second
//! shunt bench exchange client --ofi ADDRESS --measure check --size 20000 --count 1000
//!     writes of at most so many bytes, echoed and compared
//! shunt bench exchange find
//!     the network that the server would use; `find-to`: the client
//! ```
//!
//! `--in-place 1`: bandwidth of bytes that are written where they are sent from, and read where
//! they arrive, as in libfabric's own tests; a socket copies them at both ends. Both ends get the
//! same measure and size. `--provider` and `--host` (the server's address) choose the network.
//! Results are lines of JSON, as those of `bench/programs`.

use crate::process;
use crate::stats;
use serde_json::json;
use std::error::Error;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fabric::shm::Map;
use ofi::{Found, Library, Link, Owner, Port};
use stream::ring::{Consumer, Producer};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The word for it.
pub const WORD: &str = "exchange";

const RING: usize = 256 << 10;
/// Long writes are published in pieces of half of the ring, as the progress thread of sockets does,
/// so that the reader begins while the rest is under way.
const PIECE: usize = RING / 2;
/// The layout of the segments: positions, then the ring.
const W: usize = 0;
const R: usize = 64;
const DATA: usize = 4096;
const SEGMENT: usize = DATA + RING;
const WORDS: &[u8] = b"exchange";

pub fn main(args: &[OsString]) -> ExitCode {
    match parse(args).and_then(|options| options.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("exchange: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Measure {
    Latency,
    Bandwidth,
    Check,
}

#[derive(Debug)]
struct Options {
    role: String,
    /// Where the server is, in the provider's form, as hexadecimal digits.
    ofi: String,
    provider: Option<String>,
    host: Option<IpAddr>,
    measure: Measure,
    size: usize,
    seconds: f64,
    warmup: f64,
    count: u64,
    in_place: bool,
    cpu: Option<usize>,
}

fn parse(args: &[OsString]) -> Result<Options> {
    let mut words = args.iter().map(|word| word.to_str().ok_or("not text"));
    let mut options = Options {
        role: words.next().ok_or("server, client, find or find-to")??.into(),
        ofi: String::new(),
        provider: None,
        host: None,
        measure: Measure::Latency,
        size: 64,
        seconds: 1.0,
        warmup: 0.1,
        count: 1000,
        in_place: false,
        cpu: None,
    };
    while let Some(name) = words.next().transpose()? {
        let value = words.next().ok_or_else(|| format!("{name} needs a value"))??;
        match name {
            "--ofi" => options.ofi = value.into(),
            "--provider" => options.provider = Some(value.into()),
            "--host" => options.host = Some(value.parse()?),
            "--measure" => {
                options.measure = match value {
                    "latency" => Measure::Latency,
                    "bandwidth" => Measure::Bandwidth,
                    "check" => Measure::Check,
                    _ => return Err("latency, bandwidth or check".into()),
                }
            }
            "--size" => options.size = value.parse::<usize>()?.max(1),
            "--seconds" => options.seconds = value.parse()?,
            "--warmup" => options.warmup = value.parse()?,
            "--count" => options.count = value.parse()?,
            "--in-place" => options.in_place = value.parse::<u8>()? != 0,
            "--cpu" => options.cpu = Some(value.parse()?),
            _ => return Err(format!("{name} is not known").into()),
        }
    }
    Ok(options)
}

/// Reports when the link is established, and when it is over.
struct LinkEvents(Mutex<Sender<std::result::Result<(), String>>>);

impl Owner for LinkEvents {
    fn ready(&self, _link: &Link) {
        let _ = self.0.lock().expect("nobody panics with it").send(Ok(()));
    }
    fn over(&self, _link: &Link, why: &str) {
        let _ = self.0.lock().expect("nobody panics with it").send(Err(why.into()));
    }
}

impl Options {
    fn run(&self) -> Result<()> {
        if let Some(cpu) = self.cpu {
            process::pin(cpu)?;
        }
        let (told, said) = channel();
        let owner = Arc::new(LinkEvents(Mutex::new(told)));
        match self.role.as_str() {
            "find" | "find-to" => {
                let at = if self.role == "find" { self.host } else { self.host.map(source).transpose()? };
                let found = self.find(at)?;
                let (major, minor) = Library::get()?.version();
                let version = format!("{major}.{minor}");
                println!(
                    "{}",
                    json!({"provider": found.provider, "domain": found.domain, "libfabric": version})
                );
                Ok(())
            }
            "server" => {
                let port = open(&self.find(self.host)?, &owner)?;
                let address = port.address().iter().fold(String::new(), |mut text, byte| {
                    let _ = write!(text, "{byte:02x}");
                    text
                });
                println!("{}", json!({"ready": address}));
                std::io::stdout().flush()?;
                said.recv_timeout(Duration::from_secs(600))??;
                let link = port.links().pop().ok_or("the link is gone")?;
                self.serve(&mut Ends::new(&link))?;
                println!("{}", json!({"cpu_ns": cpu_ns()}));
                Ok(())
            }
            "client" => {
                let port = open(&self.find(self.host.map(source).transpose()?)?, &owner)?;
                let link = port.connect(&bytes_of(&self.ofi)?, WORDS, SEGMENT, owner)?;
                said.recv_timeout(Duration::from_secs(30))??;
                self.ask(&mut Ends::new(&link), &said)
            }
            _ => Err("server, client, find or find-to".into()),
        }
    }

    /// The best domain that an address of this host can use.
    fn find(&self, at: Option<IpAddr>) -> Result<Found> {
        let found = ofi::find(self.provider.as_deref(), at)?;
        let found = found.into_iter().next().ok_or("libfabric finds no such domain")?;
        eprintln!("by {} on {}", found.provider, found.domain);
        Ok(found)
    }

    fn serve(&self, ends: &mut Ends) -> Result<()> {
        let mut bytes = vec![0; self.size];
        let over = |link: &Link| link.why_over().is_some();
        loop {
            let got = match self.measure {
                _ if self.in_place => ends.receive_in_place().map(|last| {
                    bytes[0] = last;
                    1
                }),
                Measure::Latency => ends.receive_all(&mut bytes).map(|()| bytes.len()),
                _ => ends.receive(&mut bytes),
            };
            let got = match got {
                Ok(got) => got,
                // The peer goes when it has what it needs.
                Err(_) if over(&ends.link) => return Ok(()),
                Err(error) => return Err(error),
            };
            if self.measure != Measure::Bandwidth {
                ends.send(&bytes[..got])?;
            } else if bytes[got - 1] == END {
                // All bytes have come.
                ends.send(&[END])?;
            }
        }
    }

    fn ask(&self, ends: &mut Ends, said: &Receiver<std::result::Result<(), String>>) -> Result<()> {
        match self.measure {
            Measure::Latency => self.latency(ends)?,
            Measure::Bandwidth => self.bandwidth(ends)?,
            Measure::Check => self.check(ends)?,
        }
        match said.try_recv() {
            Ok(Err(why)) => Err(why.into()),
            _ => Ok(()),
        }
    }

    fn latency(&self, ends: &mut Ends) -> Result<()> {
        let mut bytes = vec![0x5a; self.size];
        let (begun, mut times) = (Instant::now(), Vec::new());
        let (mut before, mut cpu) = (begun, cpu_ns());
        let [warm, end] = [self.warmup, self.warmup + self.seconds].map(Duration::from_secs_f64);
        while before - begun < end {
            ends.send(&bytes)?;
            ends.receive_all(&mut bytes)?;
            let now = Instant::now();
            if now - begun < warm {
                cpu = cpu_ns();
            } else {
                times.push((now - before).as_nanos() as f64);
            }
            before = now;
        }
        let cpu = cpu_ns() - cpu;
        let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
        times.sort_by(f64::total_cmp);
        if times.is_empty() {
            return Err("too short a time".into());
        }
        let [p50, p99] = [0.5, 0.99].map(|at| stats::share(&times, at));
        let count = times.len();
        println!(
            "{}",
            json!({"size": self.size, "count": count, "p50_ns": p50, "p99_ns": p99, "mean_ns": mean, "cpu_ns": cpu})
        );
        Ok(())
    }

    fn bandwidth(&self, ends: &mut Ends) -> Result<()> {
        let bytes = vec![0x5a; self.size];
        // Reading the clock costs as much as a small write.
        let stride = (65536 / self.size).max(1);
        let mut stream = |seconds: f64| -> Result<(f64, f64, u64)> {
            let (begun, cpu, mut total) = (Instant::now(), cpu_ns(), 0.0);
            while begun.elapsed().as_secs_f64() < seconds {
                for _ in 0..stride {
                    match self.in_place {
                        true => ends.send_in_place(bytes.len())?,
                        false => ends.send(&bytes)?,
                    }
                    total += bytes.len() as f64;
                }
            }
            ends.send(&[END])?;
            ends.receive_all(&mut [0])?;
            Ok((total, begun.elapsed().as_secs_f64(), cpu_ns() - cpu))
        };
        stream(self.warmup)?;
        let (total, seconds, cpu) = stream(self.seconds)?;
        let (bytes, messages) = (total / seconds, total / self.size as f64 / seconds);
        println!(
            "{}",
            json!({"size": self.size, "seconds": seconds, "bytes": total, "bytes_per_second": bytes,
                   "messages_per_second": messages, "cpu_ns": cpu})
        );
        Ok(())
    }

    fn check(&self, ends: &mut Ends) -> Result<()> {
        let (mut state, mut sum, mut total) = (1u64, 0u64, 0u64);
        for _ in 0..self.count {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let len = 1 + (state >> 33) as usize % self.size;
            let sent: Vec<u8> = (0..len).map(|at| (state >> 40) as u8 ^ (at * 131) as u8).collect();
            ends.send(&sent)?;
            let mut back = vec![0; len];
            ends.receive_all(&mut back)?;
            if back != sent {
                return Err(format!("after {total} bytes: not what was sent").into());
            }
            total += len as u64;
            sum = sent.iter().fold(sum, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        }
        println!("{}", json!({"bytes": total, "sum": format!("{sum:016x}")}));
        Ok(())
    }
}

/// The address of this host from which that one is reached.
fn source(host: IpAddr) -> Result<IpAddr> {
    let any: IpAddr = if host.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0))?;
    // This sends nothing.
    socket.connect((host, 9))?;
    Ok(socket.local_addr()?.ip())
}

fn bytes_of(hex: &str) -> Result<Vec<u8>> {
    let digit = |two: &[u8]| Ok(u8::from_str_radix(std::str::from_utf8(two)?, 16)?);
    hex.as_bytes().chunks(2).map(digit).collect()
}

/// Processor time that this process has used.
fn cpu_ns() -> u64 {
    // SAFETY: the call writes the time it is given, for which all zeroes is valid.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time);
        time
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn open(found: &Found, owner: &Arc<LinkEvents>) -> Result<Port> {
    let owner = Arc::clone(owner);
    let gate = move |words: &[u8]| {
        let owner: Arc<dyn Owner> = owner.clone();
        // Some providers append bytes to what they carry.
        words.starts_with(WORDS).then_some((SEGMENT, owner))
    };
    Ok(Port::open(found, Box::new(gate))?)
}

/// Both directions of a link.
struct Ends {
    link: Arc<Link>,
    mine: Map,
    producer: Producer,
    consumer: Consumer,
}

impl Ends {
    fn new(link: &Arc<Link>) -> Ends {
        let (producer, consumer) = (Producer::new(DATA, RING), Consumer::new(DATA, RING));
        Ends { link: Arc::clone(link), mine: link.mine(), producer, consumer }
    }

    fn wait(&self, began: &mut Option<Instant>) -> Result<()> {
        self.link.help();
        if let Some(why) = self.link.why_over() {
            return Err(why.into());
        }
        if began.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(60) {
            return Err("nothing came for a minute".into());
        }
        Ok(())
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<()> {
        let mut began = None;
        while !bytes.is_empty() {
            let room = self.producer.room(&self.mine, R, 1).map_err(|_| "the peer lies")?;
            if room == 0 {
                self.wait(&mut began)?;
                continue;
            }
            let (now, later) = bytes.split_at(room.min(bytes.len()).min(PIECE));
            // SAFETY: a slice of so many.
            unsafe { self.producer.put(&*self.link, now.as_ptr(), now.len()) };
            self.producer.publish(&*self.link, W);
            bytes = later;
        }
        Ok(())
    }

    /// As `send`, of bytes that lie in the shadow: zeroes.
    fn send_in_place(&mut self, mut len: usize) -> Result<()> {
        let mut began = None;
        while len > 0 {
            let room = self.producer.room(&self.mine, R, 1).map_err(|_| "the peer lies")?;
            if room == 0 {
                self.wait(&mut began)?;
                continue;
            }
            let now = room.min(len).min(PIECE);
            for (offset, len) in self.producer.places(now).into_iter().filter(|(_, len)| *len > 0) {
                self.link.put_shadowed(offset, len);
            }
            self.producer.filled(now);
            self.producer.publish(&*self.link, W);
            len -= now;
        }
        Ok(())
    }

    /// Returns the last of the received bytes, and gives all of them back.
    fn receive_in_place(&mut self) -> Result<u8> {
        let mut began = None;
        loop {
            let ready = self.consumer.ready(&self.mine, W, 1, || u64::MAX).map_err(|_| "the peer lies")?;
            if ready > 0 {
                let len = ready.min(PIECE);
                let mut last = 0;
                // SAFETY: one byte.
                unsafe { self.consumer.peek(&self.mine, len - 1, &mut last, 1) };
                self.consumer.consume(&*self.link, R, len);
                return Ok(last);
            }
            self.wait(&mut began)?;
        }
    }

    /// Reads at least one byte, at most as many as there is room for.
    fn receive(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let mut began = None;
        loop {
            let ready = self.consumer.ready(&self.mine, W, 1, || u64::MAX).map_err(|_| "the peer lies")?;
            if ready == 0 {
                self.wait(&mut began)?;
                continue;
            }
            let len = ready.min(bytes.len()).min(PIECE);
            // SAFETY: a slice of at least so many.
            unsafe { self.consumer.peek(&self.mine, 0, bytes.as_mut_ptr(), len) };
            self.consumer.consume(&*self.link, R, len);
            return Ok(len);
        }
    }

    fn receive_all(&mut self, bytes: &mut [u8]) -> Result<()> {
        let mut got = 0;
        while got < bytes.len() {
            got += self.receive(&mut bytes[got..])?;
        }
        Ok(())
    }
}

/// The last byte of a stream; no other piece ends with it.
const END: u8 = 0xff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood_or_refused() {
        let parse = |words: &str| super::parse(&words.split(' ').map(OsString::from).collect::<Vec<_>>());
        let options =
            parse("client --ofi 0a0b --measure check --size 7 --count 3 --host 127.0.0.1 --provider tcp")
                .unwrap();
        assert_eq!((options.measure, options.size, options.count), (Measure::Check, 7, 3));
        assert_eq!(bytes_of(&options.ofi).unwrap(), [10, 11]);
        assert_eq!(source(options.host.unwrap()).unwrap(), Ipv4Addr::LOCALHOST);
        for wrong in
            ["", "server --ofi", "server --speed 3", "client --measure speed --size 3", "client --size x"]
        {
            let refused = parse(wrong).is_err();
            assert!(refused || wrong.is_empty(), "{wrong}");
        }
        assert!(bytes_of("0g").is_err());
    }
}
