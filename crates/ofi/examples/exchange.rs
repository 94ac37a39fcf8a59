//! Two processes, here or on two hosts, and a stream of bytes each way over a link, by the rings that sockets use. What `shunt bench` and the tests between
//! kernels run; by hand:
//!
//!     exchange listen                      says an address
//!     exchange ADDRESS latency 64 2        half a round trip of 64 bytes, for two seconds
//!     exchange ADDRESS bandwidth 65536 2   one way
//!     exchange ADDRESS check 20000 1000    a thousand writes of at most so many bytes, echoed and compared
//!
//! `OFI_PROVIDER` and `OFI_ADDRESS` (an address of this host) choose what to go by. Results are lines of JSON.

use std::env;
use std::error::Error;
use std::io::Write as _;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fabric::shm::Map;
use ofi::{Link, Owner, Port};
use stream::ring::{Consumer, Producer};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const RING: usize = 256 << 10;
/// Where things are in the segments: positions, then the ring.
const W: usize = 0;
const R: usize = 64;
const DATA: usize = 4096;
const SEGMENT: usize = DATA + RING;
const WORDS: &[u8] = b"exchange";

/// Says when the link stands, and when it is over.
struct Told(Mutex<Sender<std::result::Result<(), String>>>);

impl Owner for Told {
    fn ready(&self, _link: &Link) {
        let _ = self.0.lock().expect("nobody panics with it").send(Ok(()));
    }
    fn over(&self, _link: &Link, why: &str) {
        let _ = self.0.lock().expect("nobody panics with it").send(Err(why.into()));
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let (told, said) = channel();
    let owner = Arc::new(Told(Mutex::new(told)));
    let port = open(&owner)?;
    match words[..] {
        ["listen"] => {
            let address: String = port.address().iter().map(|byte| format!("{byte:02x}")).collect();
            println!("{address}");
            std::io::stdout().flush()?;
            said.recv_timeout(Duration::from_secs(600))??;
            let link = port.links().pop().ok_or("the link is gone")?;
            serve(&mut Ends::new(&link))
        }
        [address, what, size, amount] => {
            let address: Vec<u8> = (0..address.len() / 2)
                .map(|at| u8::from_str_radix(&address[at * 2..at * 2 + 2], 16))
                .collect::<std::result::Result<_, _>>()?;
            let link = port.connect(&address, WORDS, SEGMENT, owner)?;
            said.recv_timeout(Duration::from_secs(30))??;
            ask(&mut Ends::new(&link), what, size.parse()?, amount.parse()?, &said)
        }
        _ => Err("exchange listen | exchange ADDRESS latency|bandwidth|check SIZE SECONDS|COUNT".into()),
    }
}

fn open(owner: &Arc<Told>) -> Result<Port> {
    let provider = env::var("OFI_PROVIDER").ok();
    let address = env::var("OFI_ADDRESS").ok().map(|at| at.parse()).transpose()?;
    let found = ofi::find(provider.as_deref(), address)?;
    let found = found.first().ok_or("libfabric finds no such domain")?;
    eprintln!("by {} on {}", found.provider, found.domain);
    let owner = Arc::clone(owner);
    let gate = move |words: &[u8]| {
        let owner: Arc<dyn Owner> = owner.clone();
        // Some providers fill up what they carry.
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
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            // SAFETY: a slice of so many.
            unsafe { self.producer.put(&*self.link, now.as_ptr(), now.len()) };
            self.producer.publish(&*self.link, W);
            bytes = later;
        }
        Ok(())
    }

    /// At least one byte, at most as many as there is room for.
    fn receive(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let mut began = None;
        loop {
            let ready = self.consumer.ready(&self.mine, W, 1, || u64::MAX).map_err(|_| "the peer lies")?;
            if ready == 0 {
                self.wait(&mut began)?;
                continue;
            }
            let len = ready.min(bytes.len());
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

/// What is asked for: what, size, nanoseconds or count.
fn serve(ends: &mut Ends) -> Result<()> {
    let mut order = [0; 24];
    ends.receive_all(&mut order)?;
    let [what, size, _] =
        [0, 8, 16].map(|at| u64::from_le_bytes(order[at..at + 8].try_into().expect("eight")));
    let mut bytes = vec![0; (size as usize).clamp(1, 1 << 24)];
    loop {
        let got = match what {
            0 => ends.receive_all(&mut bytes).map(|()| bytes.len()),
            _ => ends.receive(&mut bytes),
        };
        let got = match got {
            Ok(got) => got,
            // The peer goes when it has what it wanted.
            Err(_) if ends.link.why_over().is_some() => return Ok(()),
            Err(error) => return Err(error),
        };
        if what != 1 {
            ends.send(&bytes[..got])?;
        } else if bytes[got - 1] == END {
            // All of it has come.
            ends.send(&[END])?;
        }
    }
}

/// The last byte of a stream, and of none of its other pieces.
const END: u8 = 0xff;

fn ask(
    ends: &mut Ends,
    what: &str,
    size: usize,
    amount: f64,
    said: &Receiver<std::result::Result<(), String>>,
) -> Result<()> {
    let kind = ["latency", "bandwidth", "check"]
        .iter()
        .position(|known| *known == what)
        .ok_or("latency, bandwidth or check")?;
    let order: Vec<u8> =
        [kind as u64, size as u64, amount as u64].iter().flat_map(|word| word.to_le_bytes()).collect();
    ends.send(&order)?;
    let mut bytes = vec![0x5a; size.max(1)];
    let (begun, mut count, mut total) = (Instant::now(), 0u64, 0u64);
    match kind {
        0 => {
            while begun.elapsed().as_secs_f64() < amount {
                for _ in 0..16 {
                    ends.send(&bytes)?;
                    ends.receive_all(&mut bytes)?;
                    count += 1;
                }
            }
            let half = begun.elapsed().as_nanos() as f64 / count as f64 / 2.0;
            println!("{{\"what\": \"latency\", \"size\": {size}, \"ns\": {half:.0}, \"count\": {count}}}");
        }
        1 => {
            while begun.elapsed().as_secs_f64() < amount {
                ends.send(&bytes)?;
                total += bytes.len() as u64;
            }
            ends.send(&[END])?;
            ends.receive_all(&mut [0])?;
            let rate = total as f64 / begun.elapsed().as_secs_f64();
            println!("{{\"what\": \"bandwidth\", \"size\": {size}, \"bytes_per_second\": {rate:.0}}}");
        }
        _ => {
            let mut state = 1u64;
            let mut sum = 0u64;
            for _ in 0..amount as u64 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let len = 1 + (state >> 33) as usize % size.max(1);
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
            println!("{{\"what\": \"check\", \"bytes\": {total}, \"sum\": \"{sum:016x}\"}}");
        }
    }
    match said.try_recv() {
        Ok(Err(why)) => Err(why.into()),
        _ => Ok(()),
    }
}
