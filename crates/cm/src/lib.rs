//! The connection manager, as librdmacm is called: it connects Virtual Interfaces of different
//! hosts. The crate `via` asks for that by its [`via::remote::ConnectionManager`].
//!
//! A program that requests a connection connects to the agent of the other host by TCP, proves that
//! it has the cluster's key, and says where it wants to connect (`Between::Meet`). The agent hands
//! this TCP connection over to the program that waits there, through the UNIX socket at which that
//! program listens anyway. So programs register nowhere, and one port serves all. Both programs
//! prove to each other once more that they have the key ([`Channel`]), as the agent knows the keys
//! of the first channel. Then they exchange the messages of `via`, with a ticket and the addresses
//! of their fabrics ([`Handshake`]). The program that accepts asks for the link, with that ticket;
//! the one that requests expects it.
//!
//! The TCP connection stays, unused: when it ends, the Virtual Interfaces' connection ends, after
//! the link has delivered what is under way.
#![deny(missing_docs)]

mod handshake;
mod line;
mod link;
mod notes;
mod settings;

use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use cluster::channel::{self, Channel};
use cluster::wire::{Between, Why};
use fabric::sys;
use host::addr::octets;
use via::abi::Return;
use via::cq::Until;
use via::remote::{self, Line};

pub use crate::handshake::Handshake;
use crate::line::{Call, Over, listen_until};
use crate::link::Listener;
use crate::notes::note;

/// How long a client waits that has found nobody: it will ask again at once.
const NOBODY: Duration = Duration::from_millis(10);

struct Manager;

/// From now on other hosts are reached, if the options name a cluster.
pub fn install() {
    remote::install(&Manager);
}

impl remote::ConnectionManager for Manager {
    fn call(&self, host: Ipv4Addr, place: &[u8], until: Until) -> Result<Box<dyn Line>, Return> {
        let address = octets(host.into());
        let Some(settings) = settings::settings().filter(|settings| settings.networks.contains(address))
        else {
            return Err(Return::NotReachable);
        };
        let key = settings.key.as_ref().map_err(|why| unreachable(host, why))?;
        let mut agent = Channel::connect(None, address, settings.port, key)
            .map_err(|error| unreachable(host, &error.to_string()))?;
        let meet = Between::Meet { uid: sys::geteuid(), place: place.to_vec() };
        let mut answers = Vec::new();
        let mut listener = None;
        let asked = (|| {
            listen_until(&mut agent, &mut answers, until, |agent, _| agent.is_open())?;
            // Opening libfabric takes time, which no peer shall have to wait for.
            let own = agent.stream().local_addr().map_err(|_| Over::End(channel::End::Gone))?;
            listener = Some(Listener::at(own.ip(), settings));
            agent.say(meet).map_err(Over::End)?;
            listen_until(&mut agent, &mut answers, until, |_, answers| !answers.is_empty())
        })();
        match (answers.pop(), asked) {
            (Some(Between::Met), _) => {}
            (Some(Between::Not { why: Why::Nobody, .. }), _) => {
                std::thread::sleep(NOBODY);
                return Err(Return::NoMatch);
            }
            (Some(_), _) | (_, Err(Over::End(channel::End::Garbled))) => {
                return Err(unreachable(host, "its agent is of another version"));
            }
            (_, Err(Over::Time)) => return Err(Return::Timeout),
            (_, Err(Over::End(channel::End::WrongKey))) => {
                return Err(unreachable(
                    host,
                    "its agent hangs up: has it another key, or is this host outside of its networks?",
                ));
            }
            (_, _) => {
                return Err(unreachable(host, &format!("no agent answers at port {}", settings.port)));
            }
        }
        let call = (|| {
            let listener = listener.ok_or("it is gone")??;
            let channel = Channel::over(watched(agent.into_stream()), address, key);
            channel.map(|channel| Call::to(channel, listener)).map_err(|error| error.to_string())
        })();
        let call = call.map_err(|why: String| unreachable(host, &why))?;
        // The program that waited has stopped waiting, or does not accept our proof.
        call.begin(until)
            .map_err(|over| if over == Over::Time { Return::Timeout } else { Return::NoMatch })?;
        Ok(Box::new(call))
    }

    fn accept(&self, connection: OwnedFd) -> Option<Box<dyn Line>> {
        let settings = settings::settings()?;
        let stream = TcpStream::from(connection);
        let from = stream.peer_addr().ok()?.ip().to_canonical();
        let accepted = (|| {
            let key = settings.key.as_ref()?;
            let channel =
                Channel::accept(watched(stream), octets(from), key).map_err(|error| error.to_string())?;
            Ok(Call::from(channel))
        })();
        match accepted {
            Ok(call) => Some(Box::new(call)),
            Err(why) => {
                let why: String = why;
                note(&format!("{from}: is not answered: {why}"));
                None
            }
        }
    }

    fn own_address(&self) -> Option<Ipv4Addr> {
        settings::own_address(&settings::settings()?.networks)
    }
}

/// Has the kernel check now and then whether the other host is there.
fn watched(stream: TcpStream) -> TcpStream {
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 2),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
    ];
    for (level, name, value) in options {
        let value: libc::c_int = value;
        // SAFETY: an int, as these options are. Where an option is missing, the end is noticed when
        // something is sent.
        unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, (&raw const value).cast(), 4) };
    }
    stream
}

/// Reports why a host is not reached.
fn unreachable(host: impl Into<IpAddr>, why: &str) -> Return {
    note(&format!("{}: {why}", host.into()));
    Return::NotReachable
}
