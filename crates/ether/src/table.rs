//! The table of hosts: one TOML file, the same on every host. It has the nets, the hosts that are
//! on them, and their addresses: for ETHOS the UDP address; for ETHOM, if hosts are on several
//! machines, the address where they connect before they have a link. It becomes a [`Table`] that is
//! valid in all parts. Everything that is not understood is an error that names file, line and key,
//! and says what to do.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Spanned, Value};

/// The default directory of the sockets.
pub const DIRECTORY: &str = "/run/shunt/ether";
/// The default TCP port of ETHOM hosts of different machines.
pub const PORT: u16 = 4771;

/// A valid table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The directory where ETHOM hosts connect, and of the control sockets.
    pub directory: PathBuf,
    /// Whether a machine is the host with its host name, if nobody says otherwise.
    pub host_by_name: bool,
    /// The nets, by name.
    pub nets: Vec<Net>,
    /// The hosts, by number.
    pub hosts: Vec<Host>,
}

/// A net: on each host, a TAP device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Net {
    /// Its name.
    pub name: String,
    /// The driver of its frames.
    pub driver: Driver,
    /// The TAP device's name.
    pub interface: String,
    /// Its MTU.
    pub mtu: u32,
    /// The rule for its carrier.
    pub carrier: Carrier,
    /// Whether frames must come from the address, and with the source, of a host in the table.
    pub source_check: bool,
    /// Whether addresses that do not follow the rule are learned, and frames to unknown ones go to
    /// all.
    pub learn: bool,
    /// Whether segments and checksums may be left to the receiver.
    pub offload: bool,
    /// ETHOM: bytes of each queue.
    pub queue: usize,
    /// ETHOM: when frames are announced to the receiver.
    pub flush: Flush,
    /// How long a thread polls for more work before it sleeps, in nanoseconds, at most.
    pub spin: u64,
}

/// Drivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    /// UDP.
    Ethos,
    /// Message queues in shared memory.
    Ethom,
}

impl Driver {
    /// Its name, as the table has it.
    pub fn name(self) -> &'static str {
        match self {
            Driver::Ethos => "ethos",
            Driver::Ethom => "ethom",
        }
    }

    /// The greatest MTU: what fits into a datagram, or what Linux allows for a TAP device.
    pub fn most(self) -> u32 {
        match self {
            Driver::Ethos => 65_000,
            Driver::Ethom => 65_521,
        }
    }
}

/// The meaning of an interface's carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// The daemon runs.
    Always,
    /// At least one peer is there.
    Peers,
}

/// When frames on its queue are announced to an ETHOM receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flush {
    /// Each at once.
    Direct,
    /// All frames that the interface had to send, together.
    Batched,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its number, at the end of its address.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// The nets that it is on, each with its address there: ETHOS hosts have one; ETHOM hosts if
    /// those of other machines reach them.
    pub nets: BTreeMap<String, Option<SocketAddr>>,
}

/// The error in a table.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong(pub String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

impl Table {
    /// Reads a table from its file.
    pub fn read(path: &Path) -> Result<Table, Wrong> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Wrong(format!("{}: {error}; give the path of a table of hosts", path.display()))
        })?;
        Table::parse(&text, &path.display().to_string())
    }

    /// Reads a table from its text; `file` is for messages.
    pub fn parse(text: &str, file: &str) -> Result<Table, Wrong> {
        let source = Source { text, file };
        let raw: RawTable = toml::from_str(text).map_err(|error| {
            let what = error.message().trim_end().replace('\n', "; ");
            source.wrong(error.span().unwrap_or(0..0), &what)
        })?;
        raw.checked(&source)
    }

    /// A host, by number or by name.
    pub fn host(&self, called: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name == called || called.parse() == Ok(host.id))
    }

    /// The hosts that are on a net, with their addresses.
    pub fn members<'a>(&'a self, net: &'a str) -> impl Iterator<Item = (&'a Host, Option<SocketAddr>)> {
        self.hosts.iter().filter_map(move |host| host.nets.get(net).map(|address| (host, *address)))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTable {
    directory: Option<Spanned<String>>,
    host_by_name: Option<bool>,
    #[serde(default)]
    net: BTreeMap<Spanned<String>, RawNet>,
    #[serde(default)]
    host: Vec<RawHost>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNet {
    driver: Driver,
    interface: Option<Spanned<String>>,
    mtu: Option<Spanned<u32>>,
    carrier: Option<Carrier>,
    source_check: Option<bool>,
    learn: Option<bool>,
    offload: Option<bool>,
    queue_kib: Option<Spanned<usize>>,
    flush: Option<Spanned<Flush>>,
    spin_us: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHost {
    id: Spanned<i64>,
    name: Option<Spanned<String>>,
    address: Option<Spanned<Value>>,
    nets: Option<Spanned<Vec<String>>>,
}

/// The text of a table, to find the place of an error.
struct Source<'a> {
    text: &'a str,
    file: &'a str,
}

impl Source<'_> {
    fn wrong(&self, span: std::ops::Range<usize>, what: &str) -> Wrong {
        let start = span.start.min(self.text.len());
        let before = self.text.get(..start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let here = self.text.lines().nth(line - 1).unwrap_or_default();
        let key = here
            .split_once('=')
            .map(|(key, _)| key.trim())
            .filter(|key| !key.is_empty() && !key.contains('#'));
        let key = key.map(|key| format!(" {key}:")).unwrap_or_default();
        Wrong(format!("{}:{line}:{key} {what}", self.file))
    }
}

impl RawTable {
    fn checked(self, source: &Source) -> Result<Table, Wrong> {
        let directory = match self.directory {
            None => DIRECTORY.into(),
            Some(path) => {
                let span = path.span();
                let path = PathBuf::from(path.into_inner());
                // A UNIX socket's path has 108 bytes; ours add at most 44.
                if !path.is_absolute() || path.as_os_str().len() > 60 {
                    return Err(source.wrong(span, "must be an absolute path of at most 60 bytes"));
                }
                path
            }
        };
        let mut nets: Vec<Net> = Vec::new();
        for (name, net) in self.net {
            let net = net.checked(&name, source)?;
            if let Some(other) = nets.iter().find(|other| other.interface == net.interface) {
                let what = format!(
                    "nets {} and {} have one interface, {}; give one of them another",
                    other.name, net.name, net.interface
                );
                return Err(source.wrong(name.span(), &what));
            }
            nets.push(net);
        }
        if nets.is_empty() {
            return Err(
                source.wrong(0..0, "there is no net; write one, such as [net.eth-a] with driver = \"ethos\"")
            );
        }
        let (mut hosts, mut taken): (Vec<Host>, HashSet<(String, SocketAddr)>) = Default::default();
        for raw in self.host {
            let span = raw.id.span();
            let host = raw.checked(&nets, &mut taken, source)?;
            if hosts.iter().any(|other| other.id == host.id) {
                return Err(source
                    .wrong(span, &format!("host {} is there twice; each has a number of its own", host.id)));
            }
            if hosts.iter().any(|other| other.name == host.name) {
                return Err(source.wrong(
                    span,
                    &format!("two hosts are called {}; give one of them another name", host.name),
                ));
            }
            hosts.push(host);
        }
        if hosts.is_empty() {
            return Err(
                source.wrong(0..0, "there is no host; write one for each machine: [[host]] with id = 1")
            );
        }
        hosts.sort_by_key(|host| host.id);
        Ok(Table { directory, host_by_name: self.host_by_name.unwrap_or(false), nets, hosts })
    }
}

impl RawNet {
    fn checked(self, name: &Spanned<String>, source: &Source) -> Result<Net, Wrong> {
        if !is_name(name.as_ref(), 32) {
            return Err(source.wrong(name.span(), "a net's name has 1 to 32 letters, digits, - or _"));
        }
        let interface = match self.interface {
            None if is_interface(name.as_ref()) => name.as_ref().clone(),
            None => {
                return Err(source
                    .wrong(name.span(), "is too long to be an interface's name; add interface = \"...\""));
            }
            Some(interface) if is_interface(interface.as_ref()) => interface.into_inner(),
            Some(interface) => {
                return Err(source
                    .wrong(interface.span(), "an interface's name has 1 to 15 letters, digits, -, _ or ."));
            }
        };
        let most = self.driver.most();
        let mtu = match self.mtu {
            None => 1450,
            Some(mtu) if (68..=most).contains(mtu.as_ref()) => mtu.into_inner(),
            Some(mtu) => {
                return Err(
                    source.wrong(mtu.span(), &format!("must be 68 to {most} with {}", self.driver.name()))
                );
            }
        };
        let ethom = self.driver == Driver::Ethom;
        for span in [self.queue_kib.as_ref().map(Spanned::span), self.flush.as_ref().map(Spanned::span)] {
            if let Some(span) = span.filter(|_| !ethom) {
                return Err(source.wrong(span, "is for driver = \"ethom\" only; take it out"));
            }
        }
        let queue = match self.queue_kib {
            None => 1024,
            Some(size) if size.as_ref().is_power_of_two() && (256..=65_536).contains(size.as_ref()) => {
                size.into_inner()
            }
            Some(size) => return Err(source.wrong(size.span(), "must be a power of two from 256 to 65536")),
        };
        let spin = match self.spin_us {
            None => 50,
            Some(spin) if *spin.as_ref() <= 10_000 => spin.into_inner(),
            Some(spin) => return Err(source.wrong(spin.span(), "must be 0 to 10000 microseconds")),
        };
        Ok(Net {
            name: name.as_ref().clone(),
            driver: self.driver,
            interface,
            mtu,
            carrier: self.carrier.unwrap_or(Carrier::Always),
            source_check: self.source_check.unwrap_or(true),
            learn: self.learn.unwrap_or(true),
            offload: self.offload.unwrap_or(true),
            flush: self.flush.map_or(Flush::Direct, Spanned::into_inner),
            queue: queue << 10,
            spin: spin * 1000,
        })
    }
}

impl RawHost {
    fn checked(
        self,
        nets: &[Net],
        taken: &mut HashSet<(String, SocketAddr)>,
        source: &Source,
    ) -> Result<Host, Wrong> {
        let span = self.id.span();
        let id = match u16::try_from(*self.id.as_ref()) {
            Ok(id) if (1..=65_534).contains(&id) => id,
            _ => return Err(source.wrong(span, "must be 1 to 65534")),
        };
        let name = match self.name {
            None => format!("host-{id}"),
            // Not a number: numbers are taken for ids.
            Some(name) if is_host_name(name.as_ref()) && name.as_ref().parse::<u64>().is_err() => {
                name.into_inner()
            }
            Some(name) => {
                return Err(source.wrong(
                    name.span(),
                    "a host's name has 1 to 64 letters, digits, -, _ or ., and is no number",
                ));
            }
        };
        let mut addresses = addresses(self.address, nets, source)?;
        let on: Vec<&Net> = match &self.nets {
            None => nets.iter().collect(),
            Some(names) => {
                let mut on = Vec::new();
                for name in names.as_ref() {
                    let Some(net) = nets.iter().find(|net| net.name == *name) else {
                        return Err(source.wrong(
                            names.span(),
                            &format!("there is no [net.{name}]; write it, or take the name out"),
                        ));
                    };
                    on.push(net);
                }
                on
            }
        };
        let mut member = BTreeMap::new();
        for net in on {
            let address = addresses.remove(&net.name);
            match (net.driver, address) {
                (Driver::Ethom, None) => drop(member.insert(net.name.clone(), None)),
                (Driver::Ethom, Some((address, at))) => {
                    // Each net of each host has a port of its own.
                    if !taken.insert((String::new(), address)) {
                        let what =
                            format!("{address} is taken by another host or net; give this one another port");
                        return Err(source.wrong(at, &what));
                    }
                    member.insert(net.name.clone(), Some(address));
                }
                (Driver::Ethos, Some((address, at))) => {
                    if !taken.insert((net.name.clone(), address)) {
                        return Err(source
                            .wrong(at, &format!("two hosts have the address {address} on {}", net.name)));
                    }
                    member.insert(net.name.clone(), Some(address));
                }
                (Driver::Ethos, None) if self.nets.is_some() => {
                    return Err(source.wrong(
                        span,
                        &format!(
                            "host {id} is on {} and has no address there; add address.{} = \"IP:PORT\"",
                            net.name, net.name
                        ),
                    ));
                }
                // Without an address the host is not on that net.
                (Driver::Ethos, None) => {}
            }
        }
        if let Some((net, (_, at))) = addresses.pop_first() {
            return Err(source
                .wrong(at, &format!("host {id} is not on {net}; add it to nets, or take the address out")));
        }
        if member.is_empty() {
            return Err(source.wrong(span, &format!("host {id} is on no net; add address = \"IP:PORT\"")));
        }
        Ok(Host { id, name, nets: member })
    }
}

type Addresses = BTreeMap<String, (SocketAddr, std::ops::Range<usize>)>;

/// `address = "IP:PORT"` if it can be for one net only, else a table: net = "IP:PORT". If there are
/// ETHOS nets it is for those: on one machine ETHOM needs none.
fn addresses(address: Option<Spanned<Value>>, nets: &[Net], source: &Source) -> Result<Addresses, Wrong> {
    let Some(address) = address else { return Ok(Addresses::new()) };
    let span = address.span();
    let of = |driver| nets.iter().filter(move |net| net.driver == driver).collect::<Vec<&Net>>();
    let pairs: Vec<(String, Value)> = match address.into_inner() {
        Value::Table(table) => table.into_iter().collect(),
        one => match (&of(Driver::Ethos)[..], &of(Driver::Ethom)[..]) {
            ([net], _) | ([], [net]) => vec![(net.name.clone(), one)],
            _ => {
                return Err(
                    source.wrong(span, "there are several nets; say for which: address.NET = \"IP:PORT\"")
                );
            }
        },
    };
    let mut all = Addresses::new();
    for (name, value) in pairs {
        let Some(net) = nets.iter().find(|known| known.name == name) else {
            return Err(
                source.wrong(span, &format!("there is no [net.{name}]; write it, or take the address out"))
            );
        };
        let (port, form) = match net.driver {
            Driver::Ethos => (None, "\"IP:PORT\", such as \"10.0.0.1:7471\" or \"[fd00::1]:7471\""),
            Driver::Ethom => {
                (Some(PORT), "\"IP\" or \"IP:PORT\", such as \"10.0.0.1\" or \"[fd00::1]:4771\"")
            }
        };
        let found = match &value {
            Value::String(text) => match (text.parse(), port) {
                (Ok(ip), Some(port)) => Some(SocketAddr::new(ip, port)),
                _ => text.to_socket_addrs().ok().and_then(|mut found| found.next()),
            },
            _ => None,
        };
        match found {
            Some(address) if address.port() != 0 && !address.ip().is_unspecified() => {
                all.insert(name, (address, span.clone()));
            }
            _ => return Err(source.wrong(span, &format!("must be a string {form}"))),
        }
    }
    Ok(all)
}

fn is_name(name: &str, most: usize) -> bool {
    (1..=most).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

fn is_host_name(name: &str) -> bool {
    is_name(&name.replace('.', "-"), 64)
}

fn is_interface(name: &str) -> bool {
    is_name(&name.replace('.', "-"), 15) && name != "." && name != ".."
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = r#"
[net.eth-a]
driver = "ethos"
interface = "ethos0"
mtu = 8950

[net.mem]
driver = "ethom"
carrier = "peers"

[[host]]
id = 2
name = "b"
address = "10.0.0.2:7471"

[[host]]
id = 1
address.eth-a = "10.0.0.1:7471"
nets = ["eth-a"]
"#;

    #[test]
    fn a_table_is_read() {
        let table = Table::parse(GOOD, "t").unwrap();
        assert_eq!(table.directory, Path::new(DIRECTORY));
        assert_eq!(table.nets[0].mtu, 8950);
        assert_eq!(table.nets[1].interface, "mem");
        assert_eq!(table.hosts.iter().map(|host| host.id).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(table.members("mem").map(|(host, _)| host.id).collect::<Vec<_>>(), [2]);
        assert_eq!(table.members("eth-a").next().unwrap().1, "10.0.0.1:7471".parse().ok());
        assert_eq!(table.host("b"), table.host("2"));
    }

    #[test]
    fn ethom_hosts_have_addresses_if_they_are_on_several_machines() {
        let table = |hosts: &str| Table::parse(&format!("[net.mem]\ndriver = \"ethom\"\n{hosts}"), "t");
        let one = |address: &str| table(&format!("[[host]]\nid = 1\n{address}\n"));
        let of = |address: &str| one(address).unwrap().members("mem").next().unwrap().1;
        assert_eq!(of(""), None);
        assert_eq!(of("address = \"10.0.0.1\""), "10.0.0.1:4771".parse().ok());
        assert_eq!(of("address = \"fd00::1\""), "[fd00::1]:4771".parse().ok());
        assert_eq!(of("address.mem = \"10.0.0.1:99\""), "10.0.0.1:99".parse().ok());
        for wrong in ["\"\"", "\"10.0.0.1:0\"", "\"0.0.0.0\"", "4771"] {
            let said = one(&format!("address = {wrong}")).unwrap_err().0;
            assert!(said.starts_with("t:5: address: must be a string \"IP\" or"), "{wrong}: {said}");
        }
        let host = |id: u16, address: &str| format!("[[host]]\nid = {id}\naddress = \"{address}\"\n");
        assert!(table(&(host(1, "10.0.0.1") + &host(2, "10.0.0.1:4772"))).is_ok());
        let twice = table(&(host(1, "10.0.0.1") + &host(2, "10.0.0.1:4771"))).unwrap_err().0;
        assert!(twice.contains("t:8: address: 10.0.0.1:4771 is taken by another host or net"), "{twice}");
        let nets = "[net.one]\ndriver = \"ethom\"\n[net.two]\ndriver = \"ethom\"\n";
        let said = Table::parse(&(nets.to_string() + &host(1, "10.0.0.1")), "t").unwrap_err().0;
        assert!(said.contains("say for which: address.NET"), "{said}");
        let both = "[[host]]\nid = 1\naddress.one = \"10.0.0.1\"\naddress.two = \"10.0.0.1\"\n";
        let said = Table::parse(&(nets.to_string() + both), "t").unwrap_err().0;
        assert!(said.contains("is taken by another host or net"), "{said}");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_key() {
        for (from, to, said) in [
            ("mtu = 8950", "mtu = 70000", "t:5: mtu: must be 68 to 65000 with ethos"),
            ("mtu = 8950", "mtu = \"big\"", "t:5: mtu: invalid type"),
            ("mtu = 8950", "mut = 8950", "t:5: mut: unknown field `mut`, expected one of"),
            ("driver = \"ethos\"", "driver = \"ethox\"", "t:3: driver: unknown variant"),
            ("\"ethos0\"", "\"a name too long for it\"", "t:4: interface: an interface's name"),
            ("id = 1", "id = 2", "t:17: id: host 2 is there twice"),
            ("id = 1", "id = 70000", "t:17: id: must be 1 to 65534"),
            ("\"10.0.0.1:7471\"", "\"10.0.0.2:7471\"", "two hosts have the address"),
            ("\"10.0.0.1:7471\"", "\"10.0.0.1\"", "t:18: address.eth-a: must be a string \"IP:PORT\""),
            ("nets = [\"eth-a\"]", "nets = [\"eth-b\"]", "t:19: nets: there is no [net.eth-b]"),
            ("nets = [\"eth-a\"]", "nets = [\"mem\"]", "host 1 is not on eth-a"),
            ("interface = \"ethos0\"", "queue_kib = 512", "t:4: queue_kib: is for driver = \"ethom\" only"),
            ("interface = \"ethos0\"", "flush = \"direct\"", "t:4: flush: is for driver = \"ethom\" only"),
            ("carrier = \"peers\"", "flush = \"never\"", "t:9: flush: unknown variant `never`"),
            ("interface = \"ethos0\"", "offload = 1", "t:4: offload: invalid type"),
            ("[net.mem]", "[net.mem", "t:7:"),
        ] {
            let wrong = Table::parse(&GOOD.replace(from, to), "t").unwrap_err().0;
            assert!(wrong.contains(said), "{to}: {wrong}");
        }
        assert!(Table::parse("", "t").unwrap_err().0.contains("there is no net"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_table_or_an_error(text in ".{0,200}", at in 0..300usize) {
            let _ = Table::parse(&text, "t");
            let at = (0..=at.min(GOOD.len())).rev().find(|at| GOOD.is_char_boundary(*at)).unwrap_or(0);
            let (head, tail) = GOOD.split_at(at);
            let wrong = Table::parse(&format!("{head}{text}{tail}"), "t");
            prop_assert!(wrong.is_ok() || wrong.is_err_and(|wrong| wrong.0.starts_with("t:")));
        }
    }
}
