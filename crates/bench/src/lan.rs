//! Two hosts, and the Ethernets between them: network namespaces, joined by a wire (a pair of
//! veths). All sides that need a network below them use this wire.

use crate::error::{Error, Result, failed};
use crate::find;
use crate::process::{Launch, Process};
use crate::results::Side;
use crate::wire::Wire;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Where `ip netns` keeps namespaces.
const NAMESPACES: &str = "/run/netns";
/// The wire takes the largest datagrams in one piece, for all sides alike.
const WIRE_MTU: &str = "65535";
/// How long a program may take to make its interface, or two of them to find each other.
const PATIENCE: Duration = Duration::from_secs(10);
/// The numbers of the two hosts.
const HOSTS: [u8; 2] = [1, 2];

/// Two hosts and all that joins them. Dropping it removes everything: programs before the
/// namespaces that they are in.
pub struct Lan {
    programs: Vec<(Side, Process)>,
    hosts: [Host; 2],
    mtu: u32,
}

/// A network namespace. Dropping it removes it.
pub struct Host {
    number: u8,
    name: String,
}

impl Host {
    pub fn new(number: u8) -> Result<Host> {
        let name = format!("shunt-bench-{}-{number}", std::process::id());
        ip(&["netns", "add", &name])?;
        let host = Host { number, name };
        host.ip("link set lo up")?;
        Ok(host)
    }

    pub fn number(&self) -> u8 {
        self.number
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn path(&self) -> PathBuf {
        Path::new(NAMESPACES).join(&self.name)
    }

    /// Runs `ip` in the namespace.
    pub fn ip(&self, words: &str) -> Result<()> {
        let words: Vec<&str> = ["-n", &self.name].into_iter().chain(words.split(' ')).collect();
        ip(&words)
    }

    fn launch(&self, name: &str, package: &str) -> Result<Launch> {
        Ok(Launch::new(find::program(name, package)?).namespace(Some(&self.path())))
    }

    /// Gives a side's interface its MTU and address, and switches it on. If a program is still
    /// making it, this waits.
    fn set_up(&self, side: Side, mtu: u32, mut program: Option<&mut Process>) -> Result<()> {
        let interface = side.key();
        let end = Instant::now() + PATIENCE;
        loop {
            match self.ip(&format!("link set {interface} mtu {mtu} up")) {
                Ok(()) => break,
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(_) if program.as_mut().is_some_and(|p| p.is_running()) && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => {
                    return Err(match program {
                        Some(program) => program.failure(&format!("makes no interface {interface}")),
                        None => error,
                    });
                }
            }
        }
        self.ip(&format!("addr add {}/24 dev {interface}", address(side, self.number)))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Also after an interruption, after which nothing else is done.
        let delete = |ip| Command::new(ip).args(["netns", "delete", &self.name]).status();
        let done = find::program("ip", "iproute2").ok().map(delete);
        if !matches!(done, Some(Ok(status)) if status.success()) {
            eprintln!("shunt bench: a network namespace is left: `ip netns delete {}` removes it", self.name);
        }
    }
}

fn ip(words: &[&str]) -> Result<()> {
    Launch::new(find::program("ip", "iproute2")?).args(words).run(Duration::from_secs(20)).map(|_| ())
}

/// A host's address in a side's network; the wire itself is that of [`Side::Tcp`].
fn address(side: Side, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 200, side as u8, host)
}

fn wire(host: u8) -> Ipv4Addr {
    address(Side::Tcp, host)
}

/// Each host with the other one.
fn both([one, two]: &[Host; 2]) -> [(&Host, &Host); 2] {
    [(one, two), (two, one)]
}

impl Lan {
    /// Two hosts and a wire.
    pub fn new(mtu: u32) -> Result<Lan> {
        let hosts = [Host::new(HOSTS[0])?, Host::new(HOSTS[1])?];
        let lan = Lan { programs: Vec::new(), hosts, mtu };
        lan.cable("wire", WIRE_MTU)?;
        for host in &lan.hosts {
            host.ip("link set wire up")?;
            host.ip(&format!("addr add {}/24 dev wire", wire(host.number)))?;
        }
        Ok(lan)
    }

    /// Both ends of a pair of veths.
    fn cable(&self, name: &str, mtu: &str) -> Result<()> {
        let [one, two] = &self.hosts;
        one.ip(&format!("link add {name} mtu {mtu} type veth peer name {name} netns {} mtu {mtu}", two.name))
    }

    /// Where the ends of a side's connections are.
    pub fn wire(&self, side: Side) -> Option<Wire> {
        let [one, two] = &self.hosts;
        side.is_ethernet().then(|| Wire {
            address: address(side, one.number),
            server: Some(one.path()),
            client: Some(two.path()),
            before: Vec::new(),
            meeting: None,
        })
    }

    /// Joins both hosts by one more Ethernet, and checks by pings that frames of the whole MTU
    /// cross it.
    pub fn join(&mut self, temp: &Path, side: Side) -> Result<()> {
        match side {
            Side::Veth => self.cable(side.key(), &self.mtu.to_string())?,
            Side::Vxlan => {
                for (host, other) in both(&self.hosts) {
                    host.ip(&format!(
                        "link add vxlan type vxlan id 7 dstport 4789 local {} remote {} dev wire",
                        wire(host.number),
                        wire(other.number)
                    ))?;
                }
            }
            Side::Ethom | Side::Ethos => self.shunt(temp, side)?,
            Side::Tinc => self.tinc(temp)?,
            Side::Fastd => self.fastd(temp)?,
            Side::Vde => self.vde(temp)?,
            Side::Socat => {
                for (host, other) in both(&self.hosts) {
                    let tap = "TUN,tun-type=tap,tun-name=socat,iff-no-pi,iff-up";
                    let there =
                        format!("UDP4-DATAGRAM:{}:9001,bind={}:9001", wire(other.number), wire(host.number));
                    // Large enough for any datagram: longer ones would be cut off.
                    let launch = host.launch("socat", "socat")?.args(["-b", "65600", tap, &there]);
                    let process = launch.start()?;
                    self.programs.push((side, process));
                }
            }
            _ => return Err(Error::Failed(format!("{} is not an Ethernet", side.title()))),
        }
        let mtu = self.mtu;
        let mut programs = self.programs.iter_mut().filter(|(of, _)| *of == side).map(|(_, process)| process);
        for host in &self.hosts {
            host.set_up(side, mtu, programs.next())?;
        }
        self.ping(side)
    }

    /// Waits until a frame of the whole MTU has gone there and back.
    fn ping(&mut self, side: Side) -> Result<()> {
        let [one, two] = &self.hosts;
        let size = (self.mtu - 28).to_string();
        let to = address(side, one.number).to_string();
        let end = Instant::now() + PATIENCE;
        loop {
            let words = ["-n", "-q", "-c", "1", "-W", "1", "-M", "do", "-s", &size, &to];
            match two.launch("ping", "iputils-ping")?.args(words).run(PATIENCE) {
                Ok(_) => return Ok(()),
                Err(Error::Failed(_)) if Instant::now() < end => {}
                Err(Error::Failed(_)) => {
                    let mut programs = self.programs.iter_mut().filter(|(of, _)| *of == side);
                    let why = format!("no frame of MTU {} crosses it", self.mtu);
                    return Err(match programs.next() {
                        Some((_, program)) => program.failure(&why),
                        None => Error::Failed(why),
                    });
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// `shunt ether run` with the defaults of its table.
    fn shunt(&mut self, temp: &Path, side: Side) -> Result<()> {
        let command = find::command()?;
        let directory = temp.join(format!("{}-{}", side.key(), self.mtu));
        let table = directory.with_extension("toml");
        let mut text = format!(
            "directory = {:?}\n[net.{}]\ndriver = {:?}\nmtu = {}\n",
            directory.display().to_string(),
            side.key(),
            side.key(),
            self.mtu
        );
        for host in &self.hosts {
            text += &format!("[[host]]\nid = {}\n", host.number);
            if side == Side::Ethos {
                text += &format!("address = \"{}:7471\"\n", wire(host.number));
            }
        }
        std::fs::write(&table, text).map_err(failed(format!("cannot write {}", table.display())))?;
        for host in &self.hosts {
            let launch = Launch::new(&command).namespace(Some(&host.path()));
            let number = host.number.to_string();
            let launch = launch.args(["ether", "run", "--host", &number]).args([&table]);
            self.programs.push((side, launch.start()?));
        }
        Ok(())
    }

    /// tinc as a switch, with neither cipher nor digest.
    fn tinc(&mut self, temp: &Path) -> Result<()> {
        let name = |host: &Host| format!("host{}", host.number);
        let directories = HOSTS.map(|number| temp.join(format!("tinc-{}-{number}", self.mtu)));
        for ((host, other), directory) in both(&self.hosts).into_iter().zip(&directories) {
            let config = format!(
                "Name = {}\nMode = switch\nDeviceType = tap\nInterface = tinc\nConnectTo = {}\nAddressFamily = ipv4\n",
                name(host),
                name(other)
            );
            let about = format!(
                "Address = {0}\nBindToAddress = {0}\nCipher = none\nDigest = none\nCompression = 0\n",
                wire(host.number)
            );
            let write = |file: PathBuf, text: &str| {
                std::fs::write(&file, text).map_err(failed(format!("cannot write {}", file.display())))
            };
            std::fs::create_dir_all(directory.join("hosts")).map_err(failed("cannot make a directory"))?;
            write(directory.join("tinc.conf"), &config)?;
            write(directory.join("hosts").join(name(host)), &about)?;
            let mut keys =
                host.launch("tincd", "tinc")?.args(["-c"]).args([directory]).args(["-K", "2048"]).start()?;
            // It asks for the files of both keys: accept its proposals.
            keys.say("\n")?;
            keys.finish(Duration::from_secs(60))?;
        }
        for (at, host) in self.hosts.iter().enumerate() {
            let file = Path::new("hosts").join(name(host));
            std::fs::copy(directories[at].join(&file), directories[1 - at].join(&file))
                .map_err(failed("cannot copy a key"))?;
        }
        for (host, directory) in self.hosts.iter().zip(&directories) {
            let pid = format!("--pidfile={}", directory.join("pid").display());
            let launch = host.launch("tincd", "tinc")?.args(["-c"]).args([directory]).args(["-D", &pid]);
            self.programs.push((Side::Tinc, launch.start()?));
        }
        Ok(())
    }

    /// fastd with its method that neither encrypts nor signs.
    fn fastd(&mut self, temp: &Path) -> Result<()> {
        let mut keys = Vec::new();
        for host in &self.hosts {
            let output = host.launch("fastd", "fastd")?.args(["--generate-key"]).run(PATIENCE)?;
            let key = |what: &str| {
                let line = output.lines.iter().find_map(|line| line.strip_prefix(what));
                line.map(|key| key.trim().to_string())
                    .ok_or_else(|| Error::Failed(format!("fastd told no key: {:?}", output.lines)))
            };
            keys.push((key("Secret:")?, key("Public:")?));
        }
        for (at, (host, other)) in both(&self.hosts).into_iter().enumerate() {
            let config = format!(
                "interface \"fastd\";\nmode tap;\nmethod \"null\";\nmtu {};\nbind {}:9002;\nsecret \"{}\";\nlog level warn;\n\
                 peer \"other\" {{ key \"{}\"; remote {}:9002; }}\n",
                self.mtu,
                wire(host.number),
                keys[at].0,
                keys[1 - at].1,
                wire(other.number)
            );
            let file = temp.join(format!("fastd-{}-{at}.conf", self.mtu));
            std::fs::write(&file, config).map_err(failed("cannot configure fastd"))?;
            let process = host.launch("fastd", "fastd")?.args(["-c"]).args([&file]).start()?;
            self.programs.push((Side::Fastd, process));
        }
        Ok(())
    }

    /// A switch of VDE, and a cable from each host to it.
    fn vde(&mut self, temp: &Path) -> Result<()> {
        let socket = temp.join(format!("vde-{}", self.mtu));
        let switch =
            Launch::new(find::program("vde_switch", "vde2")?).args(["-s"]).args([&socket]).start()?;
        let end = Instant::now() + PATIENCE;
        while !socket.join("ctl").exists() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        for host in &self.hosts {
            let launch = host.launch("vde_plug2tap", "vde2")?.args(["-s"]).args([&socket]).args(["vde2"]);
            let process = launch.start()?;
            self.programs.push((Side::Vde, process));
        }
        // Behind the two that make interfaces.
        self.programs.push((Side::Vde, switch));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::temp::TempDir;

    /// As root only, as the tests of `shunt ether` are.
    #[test]
    fn two_hosts_are_joined_and_nothing_is_left() {
        if !crate::apps::is_root() {
            return;
        }
        let temp = TempDir::new().unwrap();
        let mut lan = Lan::new(1450).unwrap();
        lan.join(temp.path(), Side::Veth).unwrap();
        let wire = lan.wire(Side::Veth).unwrap();
        assert_ne!(wire.server, wire.client);
        assert!(lan.wire(Side::Tcp).is_none() && lan.wire(Side::Shunt).is_none());
        let error = lan.join(temp.path(), Side::Raw).unwrap_err();
        assert!(error.to_string().contains("not an Ethernet"), "{error}");
        let places = [wire.server.unwrap(), wire.client.unwrap()];
        assert!(places.iter().all(|place| place.exists()));
        drop(lan);
        assert!(!places.iter().any(|place| place.exists()));
    }
}
