//! What processes, agents, and agents among each other say. Everything has bounds, and is checked before it is used (rule F2): an end that says what cannot be understood is
//! shut out. Numbers are little-endian; strings of bytes have their length before them.

use host::addr::Addr;
use host::place;

/// The version of all messages; the first that both sides say.
pub const VERSION: u16 = 1;
/// The most bytes of a message.
pub const MOST: usize = 512;
/// The most bytes of an address of a fabric, and of a provider's name.
pub const ADDRESS: usize = 128;
const PROVIDER: usize = 16;

/// What an introduction is known by at both ends.
pub type Ticket = [u8; 16];

/// Where a process can be reached: its name, and its fabric's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// Names the process; drawn at random.
    pub process: u64,
    /// libfabric's provider.
    pub provider: String,
    /// The address, in the provider's own form.
    pub address: Vec<u8>,
}

/// A process to its agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToAgent {
    /// First of all: who it is.
    Enrol(Reach),
    /// It has an end of this connection, and wants to know the other's. `index` and `cookie` (SO_COOKIE) name the end.
    Post {
        /// Its place among those that the process has posted.
        index: u32,
        /// The kernel's name of the socket.
        cookie: u64,
        /// The addresses.
        own: Addr,
        /// As this host sees it.
        peer: Addr,
    },
    /// It does not want to know any more.
    Withdraw {
        /// As it was posted.
        index: u32,
        /// Likewise.
        cookie: u64,
    },
    /// Not a process, but somebody who wants to know how the agent is ([`FromAgent::Status`]).
    Status,
}

/// Why there will be no introduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    /// The other end is not in the cluster's networks.
    NotInCluster = 1,
    /// No agent answers there.
    NoAgent = 2,
    /// The agent there has another key.
    WrongKey = 3,
    /// The kernel does not confirm the end that was posted.
    Unproved = 4,
    /// The other end is by another provider, or another version.
    Other = 5,
    /// Too much is asked at once.
    TooMany = 6,
    /// Nobody waits at that address for a Virtual Interface.
    Nobody = 7,
}

impl Why {
    /// All, in order.
    pub const ALL: [Why; 7] = [
        Why::NotInCluster,
        Why::NoAgent,
        Why::WrongKey,
        Why::Unproved,
        Why::Other,
        Why::TooMany,
        Why::Nobody,
    ];

    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Why::NotInCluster => "not in the cluster's networks",
            Why::NoAgent => "no agent answers there",
            Why::WrongKey => "the agent there has another key",
            Why::Unproved => "the kernel does not confirm the end",
            Why::Other => "another provider or version there",
            Why::TooMany => "too many at once",
            Why::Nobody => "nobody waits there",
        }
    }
}

/// An agent to a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromAgent {
    /// It may post.
    Enrolled,
    /// The other end of a connection that was posted.
    Introduced {
        /// As it was posted.
        index: u32,
        /// Likewise.
        cookie: u64,
        /// The process there.
        reach: Reach,
        /// Its user, on its host.
        uid: u32,
        /// As the other end was posted.
        peer_index: u32,
        /// Likewise.
        peer_cookie: u64,
        /// Both are told the same.
        ticket: Ticket,
    },
    /// There will be none.
    Refused {
        /// As it was posted.
        index: u32,
        /// Likewise.
        cookie: u64,
        /// Why.
        why: Why,
    },
    /// A report, in JSON.
    Status(Vec<u8>),
}

/// What can be said by an encrypted connection.
pub trait Said: Sized {
    /// As it goes: at most [`MOST`] bytes.
    fn bytes(&self) -> Vec<u8>;
    /// What came; nothing if it cannot be.
    fn parse(bytes: &[u8]) -> Option<Self>;
}

impl Said for Between {
    fn bytes(&self) -> Vec<u8> {
        self.bytes()
    }
    fn parse(bytes: &[u8]) -> Option<Between> {
        Between::parse(bytes)
    }
}

/// An agent to another one, over the encrypted connection between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Between {
    /// Who has this end's other half? The addresses are as the asking host sees them.
    Ask {
        /// Names the question.
        id: u64,
        /// The end that was posted.
        own: Addr,
        /// The one that is looked for.
        peer: Addr,
        /// The process that posted it.
        reach: Reach,
        /// Its user.
        uid: u32,
        /// As it was posted.
        index: u32,
        /// Likewise.
        cookie: u64,
        /// What both processes are told.
        ticket: Ticket,
    },
    /// This one has.
    Found {
        /// The question.
        id: u64,
        /// The process.
        reach: Reach,
        /// Its user.
        uid: u32,
        /// As it was posted there.
        index: u32,
        /// Likewise.
        cookie: u64,
    },
    /// The process that the other agent serves has been told of what was found.
    Told {
        /// The question.
        id: u64,
    },
    /// Nobody will.
    Not {
        /// The question.
        id: u64,
        /// Why.
        why: Why,
    },
    /// Not an agent, but a program that wants a Virtual Interface of this host: its connection is to be handed over to who waits there.
    Meet {
        /// The user who is to be met.
        uid: u32,
        /// The place, as the crate `via` names it.
        place: Vec<u8>,
    },
    /// It is handed over; what comes next does not come from the agent.
    Met,
}

/// Writes a message.
struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u8) -> Writer {
        let mut bytes = Vec::with_capacity(MOST);
        bytes.extend(VERSION.to_le_bytes());
        bytes.push(kind);
        Writer(bytes)
    }

    fn byte(mut self, value: u8) -> Writer {
        self.0.push(value);
        self
    }

    fn half(mut self, value: u32) -> Writer {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn word(mut self, value: u64) -> Writer {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn addr(mut self, addr: &Addr) -> Writer {
        self.0.extend(addr.ip);
        self.0.extend(addr.port.to_le_bytes());
        self
    }

    fn string(mut self, bytes: &[u8]) -> Writer {
        self.0.push(bytes.len() as u8);
        self.0.extend(bytes);
        self
    }

    fn ticket(mut self, ticket: &Ticket) -> Writer {
        self.0.extend(ticket);
        self
    }

    fn reach(self, reach: &Reach) -> Writer {
        self.word(reach.process).string(reach.provider.as_bytes()).string(&reach.address)
    }
}

/// Reads one.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn some<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    /// The kind of a message of this version.
    fn kind(&mut self) -> Option<u8> {
        (u16::from_le_bytes(self.some()?) == VERSION).then(|| self.byte())?
    }

    fn byte(&mut self) -> Option<u8> {
        self.some().map(|[byte]| byte)
    }

    fn half(&mut self) -> Option<u32> {
        self.some().map(u32::from_le_bytes)
    }

    fn word(&mut self) -> Option<u64> {
        self.some().map(u64::from_le_bytes)
    }

    fn addr(&mut self) -> Option<Addr> {
        Some(Addr { ip: self.some()?, port: u16::from_le_bytes(self.some()?) })
    }

    fn string(&mut self, most: usize) -> Option<Vec<u8>> {
        let len = usize::from(self.byte()?);
        let bytes = self.0.get(..len).filter(|_| len <= most)?.to_vec();
        self.0 = &self.0[len..];
        Some(bytes)
    }

    fn reach(&mut self) -> Option<Reach> {
        let process = self.word()?;
        let provider = String::from_utf8(self.string(PROVIDER)?).ok()?;
        let plain = !provider.is_empty() && provider.bytes().all(|byte| byte.is_ascii_graphic());
        let address = self.string(ADDRESS)?;
        (plain && process != 0 && !address.is_empty()).then_some(Reach { process, provider, address })
    }

    fn why(&mut self) -> Option<Why> {
        let why = self.byte()?;
        Why::ALL.into_iter().find(|known| *known as u8 == why)
    }

    /// Nothing may be left.
    fn end<T>(self, message: T) -> Option<T> {
        self.0.is_empty().then_some(message)
    }
}

impl ToAgent {
    /// As it goes.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            ToAgent::Enrol(reach) => Writer::new(1).reach(reach),
            ToAgent::Post { index, cookie, own, peer } => {
                Writer::new(2).half(*index).word(*cookie).addr(own).addr(peer)
            }
            ToAgent::Withdraw { index, cookie } => Writer::new(3).half(*index).word(*cookie),
            ToAgent::Status => Writer::new(4),
        }
        .0
    }

    /// What came; nothing if it cannot be.
    pub fn parse(bytes: &[u8]) -> Option<ToAgent> {
        let mut from = Reader(bytes);
        let message = match from.kind()? {
            1 => ToAgent::Enrol(from.reach()?),
            2 => ToAgent::Post {
                index: from.half()?,
                cookie: from.word()?,
                own: from.addr()?,
                peer: from.addr()?,
            },
            3 => ToAgent::Withdraw { index: from.half()?, cookie: from.word()? },
            4 => ToAgent::Status,
            _ => return None,
        };
        from.end(message)
    }
}

impl FromAgent {
    /// As it goes.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            FromAgent::Enrolled => Writer::new(1),
            FromAgent::Introduced { index, cookie, reach, uid, peer_index, peer_cookie, ticket } => {
                let own = Writer::new(2).half(*index).word(*cookie).reach(reach).half(*uid);
                own.half(*peer_index).word(*peer_cookie).ticket(ticket)
            }
            FromAgent::Refused { index, cookie, why } => {
                Writer::new(3).half(*index).word(*cookie).byte(*why as u8)
            }
            FromAgent::Status(report) => {
                let mut writer = Writer::new(4);
                writer.0.extend(report);
                writer
            }
        }
        .0
    }

    /// What came; nothing if it cannot be.
    pub fn parse(bytes: &[u8]) -> Option<FromAgent> {
        let mut from = Reader(bytes);
        let message = match from.kind()? {
            1 => FromAgent::Enrolled,
            2 => FromAgent::Introduced {
                index: from.half()?,
                cookie: from.word()?,
                reach: from.reach()?,
                uid: from.half()?,
                peer_index: from.half()?,
                peer_cookie: from.word()?,
                ticket: from.some()?,
            },
            3 => FromAgent::Refused { index: from.half()?, cookie: from.word()?, why: from.why()? },
            4 => FromAgent::Status(core::mem::take(&mut from.0).to_vec()),
            _ => return None,
        };
        from.end(message)
    }
}

impl Between {
    /// As it goes.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Between::Ask { id, own, peer, reach, uid, index, cookie, ticket } => {
                let ends = Writer::new(1).word(*id).addr(own).addr(peer);
                ends.reach(reach).half(*uid).half(*index).word(*cookie).ticket(ticket)
            }
            Between::Found { id, reach, uid, index, cookie } => {
                Writer::new(2).word(*id).reach(reach).half(*uid).half(*index).word(*cookie)
            }
            Between::Not { id, why } => Writer::new(3).word(*id).byte(*why as u8),
            Between::Told { id } => Writer::new(4).word(*id),
            Between::Meet { uid, place } => Writer::new(5).half(*uid).string(place),
            Between::Met => Writer::new(6),
        }
        .0
    }

    /// What came; nothing if it cannot be.
    pub fn parse(bytes: &[u8]) -> Option<Between> {
        let mut from = Reader(bytes);
        let message = match from.kind()? {
            1 => Between::Ask {
                id: from.word()?,
                own: from.addr()?,
                peer: from.addr()?,
                reach: from.reach()?,
                uid: from.half()?,
                index: from.half()?,
                cookie: from.word()?,
                ticket: from.some()?,
            },
            2 => Between::Found {
                id: from.word()?,
                reach: from.reach()?,
                uid: from.half()?,
                index: from.half()?,
                cookie: from.word()?,
            },
            3 => Between::Not { id: from.word()?, why: from.why()? },
            4 => Between::Told { id: from.word()? },
            5 => Between::Meet { uid: from.half()?, place: from.string(place::LONGEST)? },
            6 => Between::Met,
            _ => return None,
        };
        from.end(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach() -> Reach {
        Reach { process: 7, provider: "verbs;ofi_rxm".into(), address: vec![9; ADDRESS] }
    }

    fn addr(port: u16) -> Addr {
        Addr { ip: [port as u8; 16], port }
    }

    /// Whole it is understood; cut short, longer, or of another version it is not.
    fn understood<T: PartialEq + core::fmt::Debug>(message: &T, bytes: &[u8], parse: fn(&[u8]) -> Option<T>) {
        assert!(bytes.len() <= MOST);
        assert_eq!(parse(bytes).as_ref(), Some(message));
        for len in 0..bytes.len() {
            assert_eq!(parse(&bytes[..len]), None, "the first {len} bytes of {message:?}");
        }
        let longer = [bytes, &[0]].concat();
        assert_eq!(parse(&longer), None, "more than {message:?}");
        let mut other = bytes.to_vec();
        other[0] ^= 2;
        assert_eq!(parse(&other), None, "another version");
    }

    #[test]
    fn what_is_said_is_understood() {
        let post = ToAgent::Post { index: 3, cookie: u64::MAX, own: addr(80), peer: addr(40000) };
        for message in
            [ToAgent::Enrol(reach()), post, ToAgent::Withdraw { index: 3, cookie: 5 }, ToAgent::Status]
        {
            understood(&message, &message.bytes(), ToAgent::parse);
        }
        let introduced = FromAgent::Introduced {
            index: 1,
            cookie: 2,
            reach: reach(),
            uid: 1000,
            peer_index: 3,
            peer_cookie: 4,
            ticket: [8; 16],
        };
        let refused = Why::ALL.map(|why| FromAgent::Refused { index: 1, cookie: 2, why });
        for message in [FromAgent::Enrolled, introduced].into_iter().chain(refused) {
            understood(&message, &message.bytes(), FromAgent::parse);
        }
        let status = FromAgent::Status(b"{}".to_vec());
        assert_eq!(FromAgent::parse(&status.bytes()), Some(status));
        let (own, peer) = (addr(1), addr(2));
        let ask =
            Between::Ask { id: 1, own, peer, reach: reach(), uid: 0, index: 2, cookie: 3, ticket: [4; 16] };
        let found = Between::Found { id: 1, reach: reach(), uid: 0, index: 2, cookie: 3 };
        let meet = Between::Meet { uid: 1000, place: vec![b'd'; place::LONGEST] };
        let not = Between::Not { id: 1, why: Why::TooMany };
        for message in [ask, found, not, Between::Told { id: 1 }, meet, Between::Met] {
            understood(&message, &message.bytes(), Between::parse);
        }
    }

    #[test]
    fn what_cannot_be_is_not_understood() {
        let with = |change: fn(&mut Reach)| {
            let mut reach = reach();
            change(&mut reach);
            ToAgent::parse(&ToAgent::Enrol(reach).bytes())
        };
        assert_eq!(with(|reach| reach.process = 0), None);
        assert_eq!(with(|reach| reach.provider.clear()), None);
        assert_eq!(with(|reach| reach.provider = "tcp\n".into()), None, "it goes into logs");
        assert_eq!(with(|reach| reach.provider = "x".repeat(17)), None);
        assert_eq!(with(|reach| reach.address.clear()), None);
        assert_eq!(with(|reach| reach.address = vec![0; ADDRESS + 1]), None);
    }
}
