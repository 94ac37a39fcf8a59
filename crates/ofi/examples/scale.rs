//! How the links of a process, the introductions of an agent, and memory grow with the number of
//! hosts: a simulation in virtual time. docs/scale.md has its tables.
//!
//!     cargo run --release -p ofi --example scale [HOSTS...]
//!
//! All hosts run the same number of processes. Each process opens connections at a steady rate, to
//! peers that the *pattern* chooses; they last for random times (exponential). Two processes have a
//! link from their first connection on, until they have had none for a while. Making a link takes
//! one introduction by the agents of both hosts. Everything follows from the seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

/// Processes of a host that use sockets between hosts.
const PROCESSES: u32 = 8;
/// Connections that a process opens in a second, and how long one lasts, in seconds.
const RATE: f64 = 0.5;
const LASTS: f64 = 20.0;
/// A link without connections ends after so many seconds.
const IDLE: f64 = 60.0;
/// Seconds that are simulated, and the last of them, which are counted.
const TIME: f64 = 180.0;
const COUNTED: f64 = 60.0;
const HOSTS: [u32; 4] = [10, 100, 1000, 10_000];

/// Which processes connect to each other.
#[derive(Debug, Clone, Copy)]
enum Pattern {
    /// Each process with the same sixteen others: stages of a pipeline, shards beside replicas.
    Neighbours,
    /// One process of eight is a server. Each of the others connects to servers, to popular ones
    /// more often (Zipf, exponent 1).
    Services,
    /// Each process with any other: a shuffle.
    AllToAll,
}

fn main() {
    let number = |word: String| match word.parse() {
        Ok(hosts @ 2..=100_000) => hosts,
        _ => {
            eprintln!("scale: {word} is no number of hosts (2 to 100000)");
            std::process::exit(2)
        }
    };
    let hosts: Vec<u32> = std::env::args().skip(1).map(number).collect();
    let hosts = if hosts.is_empty() { HOSTS.to_vec() } else { hosts };
    println!(
        "| pattern | hosts | connections of a process | links of a process: median, 99 %, most | links of a host: median, most | introductions a second of an agent: median, most | agents that an agent knows: median, most |"
    );
    println!("|---|---|---|---|---|---|---|");
    for pattern in [Pattern::Neighbours, Pattern::Services, Pattern::AllToAll] {
        for &hosts in &hosts {
            World::new(pattern, hosts).run().print(pattern, hosts);
        }
    }
}

/// Numbers that look random: splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Between 0 and 1, neither of them.
    fn part(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn below(&mut self, most: u32) -> u32 {
        (self.next() % u64::from(most)) as u32
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.part().ln()
    }
}

/// Events, by their time in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The process opens its next connection.
    Opens(u32),
    /// A connection between these two processes ends.
    Ends(u32, u32),
    /// The link between these two processes may have had no connection for a while.
    Idle(u32, u32),
}

struct Link {
    connections: u32,
    /// Since when it has none.
    since: u64,
}

struct World {
    pattern: Pattern,
    processes: u32,
    random: Random,
    queue: BinaryHeap<Reverse<(u64, Event)>>,
    links: HashMap<(u32, u32), Link>,
    /// By host: introductions in the counted time, and the hosts that they were with.
    introductions: Vec<u32>,
    known: Vec<HashSet<u32>>,
    /// The sum of the popularity of all servers before this one.
    popular: Vec<f64>,
}

fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}

fn host(process: u32) -> u32 {
    process / PROCESSES
}

impl World {
    fn new(pattern: Pattern, hosts: u32) -> World {
        let processes = hosts * PROCESSES;
        let mut sum = 0.0;
        let popular = (1..=hosts)
            .map(|rank| {
                sum += 1.0 / f64::from(rank);
                sum
            })
            .collect();
        let mut world = World {
            pattern,
            processes,
            random: Random(u64::from(hosts)),
            queue: BinaryHeap::new(),
            links: HashMap::new(),
            introductions: vec![0; hosts as usize],
            known: vec![HashSet::new(); hosts as usize],
            popular,
        };
        for process in 0..processes {
            let first = world.random.exponential(1.0 / RATE);
            world.at(micros(first), Event::Opens(process));
        }
        world
    }

    fn at(&mut self, time: u64, event: Event) {
        self.queue.push(Reverse((time, event)));
    }

    /// Chooses a process of another host.
    fn peer(&mut self, of: u32) -> Option<u32> {
        let peer = match self.pattern {
            Pattern::Neighbours => {
                // The same ones each time.
                let mut fixed = Random(u64::from(of) << 8 | u64::from(self.random.below(16)));
                fixed.below(self.processes)
            }
            Pattern::Services => {
                let servers = self.popular.len();
                let at = self.random.part() * self.popular[servers - 1];
                // One server on each host.
                self.popular.partition_point(|&begins| begins <= at).min(servers - 1) as u32 * PROCESSES
            }
            Pattern::AllToAll => self.random.below(self.processes),
        };
        (host(peer) != host(of)).then_some(peer)
    }

    fn run(mut self) -> World {
        let (end, counted) = (micros(TIME), micros(TIME - COUNTED));
        while let Some(Reverse((now, event))) = self.queue.pop() {
            if now > end {
                break;
            }
            match event {
                Event::Opens(process) => {
                    let next = now + micros(self.random.exponential(1.0 / RATE));
                    self.at(next, Event::Opens(process));
                    if let Some(peer) = self.peer(process) {
                        self.open(now, process, peer, now >= counted);
                    }
                }
                Event::Ends(a, b) => {
                    if let Some(link) = self.links.get_mut(&(a, b)) {
                        link.connections -= 1;
                        link.since = now;
                        if link.connections == 0 {
                            self.at(now + micros(IDLE), Event::Idle(a, b));
                        }
                    }
                }
                Event::Idle(a, b) => {
                    let over = |link: &Link| link.connections == 0 && now - link.since >= micros(IDLE);
                    if self.links.get(&(a, b)).is_some_and(over) {
                        self.links.remove(&(a, b));
                    }
                }
            }
        }
        self
    }

    fn open(&mut self, now: u64, a: u32, b: u32, counted: bool) {
        let pair = (a.min(b), a.max(b));
        if !self.links.contains_key(&pair) && counted {
            for (one, other) in [(a, b), (b, a)] {
                self.introductions[host(one) as usize] += 1;
                self.known[host(one) as usize].insert(host(other));
            }
        }
        self.links.entry(pair).or_insert(Link { connections: 0, since: now }).connections += 1;
        let lasts = micros(self.random.exponential(LASTS));
        self.at(now + lasts, Event::Ends(pair.0, pair.1));
    }

    fn print(&self, pattern: Pattern, hosts: u32) {
        let mut of_process = vec![0u32; self.processes as usize];
        let mut of_host = vec![0u32; hosts as usize];
        let mut connections = 0u64;
        for (&(a, b), link) in &self.links {
            for end in [a, b] {
                of_process[end as usize] += 1;
                of_host[host(end) as usize] += 1;
            }
            connections += 2 * u64::from(link.connections);
        }
        let mut asked: Vec<u32> = self.introductions.clone();
        let mut known: Vec<u32> = self.known.iter().map(|of| of.len() as u32).collect();
        let all = [&mut of_process, &mut of_host, &mut asked, &mut known];
        all.into_iter().for_each(|counts| counts.sort_unstable());
        let part = |counts: &[u32], part: f64| counts[((counts.len() - 1) as f64 * part) as usize];
        let rate = |count: u32| f64::from(count) / COUNTED;
        println!(
            "| {} | {hosts} | {:.0} | {}, {}, {} | {}, {} | {:.1}, {:.0} | {}, {} |",
            match pattern {
                Pattern::Neighbours => "neighbours",
                Pattern::Services => "services",
                Pattern::AllToAll => "all to all",
            },
            connections as f64 / f64::from(self.processes),
            part(&of_process, 0.5),
            part(&of_process, 0.99),
            part(&of_process, 1.0),
            part(&of_host, 0.5),
            part(&of_host, 1.0),
            rate(part(&asked, 0.5)),
            rate(part(&asked, 1.0)),
            part(&known, 0.5),
            part(&known, 1.0),
        );
    }
}
