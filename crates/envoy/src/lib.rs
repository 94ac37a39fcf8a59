//! Brings Virtual Interfaces of different hosts together: what the crate `via` asks of its [`via::far::Envoy`].
//!
//! Who requests a connection calls the agent of the other host by TCP, proves that it has the cluster's key, and says whom it wants to meet (`Between::Meet`). The agent hands
//! the connection over to the process that waits there, by the UNIX socket at which that one listens anyway; so there is nobody to register with, and one port for all. Both
//! processes prove to each other anew that they have the key ([`Channel`]), as the agent knows what it has heard. What they say then is `via`'s, with a ticket and where their
//! fabric is reached ([`Said`]). Who accepts asks for the link, by that ticket; who has called expects it.
//!
//! The TCP connection stays without a word: its end is the connection's, when what is under way by the link has come.
#![deny(missing_docs)]

mod line;
mod link;
mod means;
mod notes;
mod said;

use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use cluster::channel::{self, Channel};
use cluster::wire::{Between, Why};
use fabric::sys;
use host::addr::octets;
use via::abi::Return;
use via::cq::Until;
use via::far::{self, Line};

use crate::line::{Call, Over, listen_until};
use crate::link::Door;
use crate::notes::note;
pub use crate::said::Said;

/// How long a client is held up that found nobody: it will ask again at once.
const NOBODY: Duration = Duration::from_millis(10);

struct Envoy;

/// From now on there are other hosts, if the options say so.
pub fn install() {
    far::install(&Envoy);
}

impl far::Envoy for Envoy {
    fn call(&self, host: Ipv4Addr, place: &[u8], until: Until) -> Result<Box<dyn Line>, Return> {
        let address = octets(host.into());
        let Some(means) = means::means().filter(|means| means.networks.contains(address)) else {
            return Err(Return::NotReachable);
        };
        let key = means.key.as_ref().map_err(|why| unreachable(host, why))?;
        let mut agent = Channel::connect(None, address, means.port, key)
            .map_err(|error| unreachable(host, &error.to_string()))?;
        let meet = Between::Meet { uid: sys::geteuid(), place: place.to_vec() };
        let mut answers = Vec::new();
        let mut door = None;
        let asked = (|| {
            listen_until(&mut agent, &mut answers, until, |agent, _| agent.is_open())?;
            // To open libfabric takes its time, which nobody shall have to wait for.
            let own = agent.stream().local_addr().map_err(|_| Over::End(channel::End::Gone))?;
            door = Some(Door::at(own.ip(), means));
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
                return Err(unreachable(host, &format!("no agent answers at port {}", means.port)));
            }
        }
        let call = (|| {
            let door = door.ok_or("it is gone")??;
            let channel = Channel::over(watched(agent.into_stream()), address, key);
            channel.map(|channel| Call::to(channel, door)).map_err(|error| error.to_string())
        })();
        let call = call.map_err(|why: String| unreachable(host, &why))?;
        // Whoever waited has stopped waiting, or does not believe us.
        call.begin(until)
            .map_err(|over| if over == Over::Time { Return::Timeout } else { Return::NoMatch })?;
        Ok(Box::new(call))
    }

    fn accept(&self, connection: OwnedFd) -> Option<Box<dyn Line>> {
        let means = means::means()?;
        let stream = TcpStream::from(connection);
        let from = stream.peer_addr().ok()?.ip().to_canonical();
        let accepted = (|| {
            let key = means.key.as_ref()?;
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
        means::own_address(&means::means()?.networks)
    }
}

/// Has the kernel ask now and then whether the other host is there.
fn watched(stream: TcpStream) -> TcpStream {
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 2),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
    ];
    for (level, name, value) in options {
        let value: libc::c_int = value;
        // SAFETY: an int, as these options are. Where there is none of them, the end is noticed when something is sent.
        unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, (&raw const value).cast(), 4) };
    }
    stream
}

/// Says why a host is not reached.
fn unreachable(host: impl Into<IpAddr>, why: &str) -> Return {
    note(&format!("{}: {why}", host.into()));
    Return::NotReachable
}
