//! The peers of an ETHOM net: the work of its keeper. Hosts that share a folder, DIR/NET, connect
//! there, and are linked by memory. Hosts of other machines connect at the addresses of the table
//! ([`crate::remote`]). The keeper calls peers without a link again and again, in the folder first.
//! So nobody has to configure which hosts are on one machine.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fabric::sys;

use crate::link::{End, Link, Offer};
use crate::net::Net;
use crate::remote::{self, Acceptor, Find, News};
use crate::sys::{accept, seqpacket, wait_for};
use crate::table::Table;

/// How often it calls hosts without a link, in milliseconds.
const RETRY: u64 = 200;
/// How often it tries to listen for hosts of other machines, in nanoseconds.
const RETRY_ACCEPTOR: u64 = 2_000_000_000;
/// The most time that a connecting host may take for its handshake, in nanoseconds.
const HANDSHAKE_TIMEOUT: u64 = 1_000_000_000;
/// Connections without a handshake yet.
const STRANGERS: usize = 64;
/// The subject of a message about all hosts of other machines.
const OTHERS: &str = "hosts on other machines are";
/// The most subjects of messages that are remembered, so that each message is written once.
const TROUBLES: usize = 1024;

/// The place where the hosts of a net connect, as its keeper has it.
pub struct Discovery {
    folder: PathBuf,
    path: PathBuf,
    listener: OwnedFd,
    /// Locked as long as this process is this host.
    _lock: File,
    /// The address at which hosts of other machines find us, if the table has one, and the settings
    /// for links.
    own: Option<SocketAddr>,
    find: Arc<Find>,
    acceptor: Option<Acceptor>,
    next_acceptor: u64,
    /// The last message about each subject.
    told: HashMap<String, String>,
}

/// A connection that is no link yet.
struct Stranger {
    socket: OwnedFd,
    /// The end that we have handed over, and to which host, if we connected.
    offered: Option<(End, u16)>,
    until: u64,
}

impl Discovery {
    /// Opens it. Missing settings for hosts of other machines are looked for later.
    pub fn open(net: &Net, table: &Table, find: &Arc<Find>) -> io::Result<Discovery> {
        let folder = table.directory.join(&net.settings.name);
        let said = |path: &Path, error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&folder)
            .map_err(|error| said(&folder, error))?;
        let lock_path = folder.join(format!("{:02}.lock", net.me));
        let lock = File::create(&lock_path).map_err(|error| said(&lock_path, error))?;
        // SAFETY: no pointers.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let what = format!(
                "host {} of net {} runs already (it holds {})",
                net.me,
                net.settings.name,
                lock_path.display()
            );
            return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
        }
        let path = folder.join(format!("{:02}.sock", net.me));
        // The host that had it is gone, or would hold the lock.
        let _ = fs::remove_file(&path);
        let listener = seqpacket(&path, true).map_err(|error| said(&path, error))?;
        // SO_PEERCRED names the user of a client. The mode would keep out root, which has given up
        // its right to other users' files.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        let mut own = table.members(&net.settings.name).filter(|(host, _)| host.id == net.me);
        Ok(Discovery {
            folder,
            path,
            listener,
            _lock: lock,
            own: own.next().and_then(|(_, address)| address),
            find: find.clone(),
            acceptor: None,
            next_acceptor: 0,
            told: HashMap::new(),
        })
    }

    /// Makes links, and drops those whose peers are gone.
    pub fn keep(mut self, net: &Arc<Net>) {
        let mut strangers: Vec<Stranger> = Vec::new();
        let (mut next_call, mut next_ask) = (0, 0);
        while !net.is_stopped() {
            self.look_after_acceptor(net);
            let peers = net.peers.current();
            let now = sys::now();
            strangers.retain(|stranger| now < stranger.until);
            let linked = |id: u16| peers.place(id).is_some_and(|place| peers.links[place].is_some());
            let missing = peers.list.iter().any(|peer| peer.id > net.me && !linked(peer.id));
            if missing && now >= next_call {
                next_call = now + RETRY * 1_000_000;
                for peer in peers.list.iter().filter(|peer| peer.id > net.me && !linked(peer.id)) {
                    let asked =
                        |stranger: &Stranger| stranger.offered.as_ref().is_some_and(|(_, id)| *id == peer.id);
                    if !strangers.iter().any(asked) {
                        strangers.extend(self.call(net, peer.id, peer.address));
                    }
                }
            }
            let links: Vec<&Arc<Link>> = peers.links.iter().flatten().collect();
            let remote = links.iter().any(|link| link.remote_path().is_some());
            if remote && now >= next_ask {
                next_ask = now + remote::ASK;
                for link in &links {
                    if link.remote_path().is_some_and(|path| path.why_over().is_some() || !path.ask(now)) {
                        link.give_up();
                    }
                }
            }
            let mut fds: Vec<(RawFd, i16)> =
                [net.keeper.fd(), self.listener.as_raw_fd()].map(|fd| (fd, libc::POLLIN)).to_vec();
            fds.extend(strangers.iter().map(|stranger| (stranger.socket.as_raw_fd(), libc::POLLIN)));
            fds.extend(links.iter().map(|link| (link.socket(), libc::POLLIN)));
            fds.extend(self.acceptor.iter().flat_map(Acceptor::descriptors));
            let busy =
                missing || !strangers.is_empty() || self.acceptor.as_ref().is_some_and(Acceptor::is_busy);
            let limits = [
                busy.then_some(RETRY),
                remote.then_some(remote::ASK / 1_000_000),
                (self.wants_acceptor(net) && self.acceptor.is_none()).then_some(RETRY_ACCEPTOR / 1_000_000),
            ];
            let ready = wait_for(&fds, limits.into_iter().flatten().min());
            if ready[0] {
                net.keeper.silence();
            }
            let mut spoke = ready[2..].iter();
            let waiting = std::mem::take(&mut strangers);
            for stranger in waiting {
                if *spoke.next().expect("there is one for each descriptor") {
                    self.answer(net, stranger);
                } else {
                    strangers.push(stranger);
                }
            }
            // A link sends nothing there: if it is readable, it has ended.
            for (link, ended) in links.iter().zip(spoke) {
                let over = link.remote_path().and_then(|path| path.why_over());
                if !ended && over.is_none() {
                    continue;
                }
                // Unless there is a newer one already.
                let current = net.peers.current();
                let held = current.place(link.peer).and_then(|place| current.links[place].as_ref());
                if held.is_some_and(|held| Arc::ptr_eq(held, link)) {
                    self.changed(net, link.peer, None);
                }
            }
            while ready[1] && strangers.len() < STRANGERS {
                let Ok(socket) = accept(&self.listener) else { break };
                strangers.push(Stranger { socket, offered: None, until: sys::now() + HANDSHAKE_TIMEOUT });
            }
            let news = self.acceptor.as_mut().map(|acceptor| acceptor.go_on(net)).unwrap_or_default();
            for news in news {
                match news {
                    News::Linked(link) => self.changed(net, link.peer, Some(Arc::new(link))),
                    News::Failed(Some(id), _, why) => self.trouble(net, Some(id), &of_host(id), &why),
                    News::Failed(None, ip, why) => self.trouble(net, None, &format!("{ip} is"), &why),
                }
            }
        }
        let _ = fs::remove_file(&self.path);
    }

    /// Whether hosts of other machines can find us: we have an address, and so has one of them.
    fn wants_acceptor(&self, net: &Net) -> bool {
        self.own.is_some() && net.peers.current().list.iter().any(|peer| peer.address.is_some())
    }

    /// Listens for hosts of other machines, if there may be any. Tried again and again, as the
    /// things that it needs may come later.
    fn look_after_acceptor(&mut self, net: &Net) {
        let Some(own) = self.own.filter(|_| self.wants_acceptor(net)) else {
            self.acceptor = None;
            return net.set_between(None);
        };
        if net.was_reloaded() {
            self.next_acceptor = 0;
            // Its links end with it: only if the key, or the fabric, has changed.
            self.acceptor
                .take_if(|acceptor| (self.find)().is_ok_and(|settings| settings != *acceptor.settings()));
        }
        if self.acceptor.is_some() || sys::now() < self.next_acceptor {
            return;
        }
        self.next_acceptor = sys::now() + RETRY_ACCEPTOR;
        match (self.find)().and_then(|settings| Acceptor::open(net, own, settings)) {
            Ok(acceptor) => {
                eprintln!(
                    "shunt ether: {}: between hosts by {}, at {own}",
                    net.settings.name,
                    acceptor.provider()
                );
                net.set_between(Some(format!("by {}, at {own}", acceptor.provider())));
                self.told.remove(OTHERS);
                self.acceptor = Some(acceptor);
            }
            Err(why) => {
                net.set_between(Some(format!("not possible: {why}")));
                self.trouble(net, None, OTHERS, &why);
            }
        }
    }

    /// Writes a message, if it is new.
    fn trouble(&mut self, net: &Net, id: Option<u16>, who: &str, why: &str) {
        let peers = net.peers.current();
        if let Some(place) = id.and_then(|id| peers.place(id)) {
            peers.list[place].set_trouble(Some(why.to_string()));
        }
        let known = self.told.get(who).is_some_and(|before| before == why);
        if !known && (self.told.contains_key(who) || self.told.len() < TROUBLES) {
            self.told.insert(who.to_string(), why.to_string());
            eprintln!("shunt ether: {}: {who} not linked: {why}", net.settings.name);
        }
    }

    /// Calls a host: by the folder, for a link by memory, or else at its address. The acceptor
    /// reports the result of the latter.
    fn call(&mut self, net: &Net, id: u16, address: Option<SocketAddr>) -> Option<Stranger> {
        match self.call_here(net, id) {
            Ok(Some(stranger)) => return Some(stranger),
            Ok(None) => {}
            Err(error) => self.trouble(net, Some(id), &of_host(id), &format!("cannot be called: {error}")),
        }
        if let (Some(acceptor), Some(address)) = (&mut self.acceptor, address)
            && !acceptor.knows(id)
            && let Err(error) = acceptor.call(net, id, address)
        {
            self.trouble(net, Some(id), &of_host(id), &format!("{address}: {error}"));
        }
        None
    }

    /// Connects to a host, if it is there, in the folder that both share.
    fn call_here(&self, net: &Net, id: u16) -> io::Result<Option<Stranger>> {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, WouldBlock};
        let absent = [BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, WouldBlock];
        let offered = seqpacket(&self.folder.join(format!("{id:02}.sock")), false).and_then(|socket| {
            let end = End::new(&net.settings)?;
            end.offer(&socket, &net.settings, net.me, id)?;
            Ok(Stranger { socket, offered: Some((end, id)), until: sys::now() + HANDSHAKE_TIMEOUT })
        });
        match offered {
            Ok(stranger) => Ok(Some(stranger)),
            Err(error) if absent.contains(&error.kind()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a stranger's message; then it is a peer, or its connection is closed.
    fn answer(&mut self, net: &Net, stranger: Stranger) {
        let told = Offer::take(&stranger.socket, &net.settings).and_then(|offer| {
            let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
            if offer.to != net.me || net.peers.current().place(offer.from).is_none() {
                return wrong(format!(
                    "host {} calls host {}: is its table the same as ours?",
                    offer.from, offer.to
                ));
            }
            let end = match stranger.offered {
                Some((_, id)) if id != offer.from => {
                    return wrong(format!("host {} answers for host {id}", offer.from));
                }
                Some((end, _)) => end,
                None if offer.from > net.me => {
                    return wrong(format!("host {} calls; we call it", offer.from));
                }
                None => {
                    let end = End::new(&net.settings)?;
                    end.offer(&stranger.socket, &net.settings, net.me, offer.from)?;
                    end
                }
            };
            Ok(offer.join(end, stranger.socket))
        });
        match told {
            Ok(link) => self.changed(net, link.peer, Some(Arc::new(link))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => {
                eprintln!("shunt ether: {}: a host that connected is not linked: {error}", net.settings.name)
            }
        }
    }

    fn changed(&mut self, net: &Net, id: u16, link: Option<Arc<Link>>) {
        if link.is_some() {
            // Messages about it from now on are new.
            self.told.remove(&of_host(id));
        }
        net.peers.set_link(id, link);
        net.sender.ring();
        net.receiver.ring();
        if let Err(error) = net.follow_carrier() {
            eprintln!("shunt ether: {}: cannot set its carrier: {error}", net.settings.interface);
        }
    }
}

/// The subject of a message about a host.
fn of_host(id: u16) -> String {
    format!("host {id} is")
}
