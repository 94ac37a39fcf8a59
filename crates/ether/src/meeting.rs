//! Who is there, on an ETHOM net: what its keeper does. Hosts meet in a folder, DIR/NET, if they have one in common, and are linked by memory; with those of other
//! machines they meet at the addresses of the table ([`crate::far`]). A peer that is not linked is looked for again and again, there first, so that nobody has to say
//! which hosts are on one machine.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fabric::sys;

use crate::far::{self, Door, Find, News};
use crate::link::{End, Link, Offer};
use crate::net::Net;
use crate::sys::{accept, seqpacket, wait_for};
use crate::table::Table;

/// How often hosts that are not there are looked for, in milliseconds.
const RETRY: u64 = 200;
/// How often it is tried to open the door for hosts of other machines, in nanoseconds.
const RETRY_DOOR: u64 = 2_000_000_000;
/// How long whoever connects may take to say who it is, in nanoseconds.
const MANNERS: u64 = 1_000_000_000;
/// Connections that have not said who they are.
const STRANGERS: usize = 64;
/// Whom a trouble with everybody elsewhere is said of.
const OTHERS: &str = "hosts on other machines are";
/// Whose troubles are remembered, so that each is told once.
const TROUBLES: usize = 1024;

/// Where the hosts of a net meet, as its keeper sees it.
pub struct Meeting {
    folder: PathBuf,
    path: PathBuf,
    listener: OwnedFd,
    /// Locked as long as we are this host.
    _lock: File,
    /// Where hosts of other machines find us, if the table says so, and by what.
    own: Option<SocketAddr>,
    find: Arc<Find>,
    door: Option<Door>,
    next_door: u64,
    /// What was last said to be wrong, with whom.
    told: HashMap<String, String>,
}

/// A connection that is no link yet.
struct Stranger {
    socket: OwnedFd,
    /// What we have handed over, and to whom, if it is we who connected.
    offered: Option<(End, u16)>,
    until: u64,
}

impl Meeting {
    /// Opens it; what is missing for hosts of other machines is looked for later.
    pub fn open(net: &Net, table: &Table, find: &Arc<Find>) -> io::Result<Meeting> {
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
        // Whoever had it is gone, or would hold the lock.
        let _ = fs::remove_file(&path);
        let listener = seqpacket(&path, true).map_err(|error| said(&path, error))?;
        // Who comes is told by SO_PEERCRED; the mode would keep out root, which has given up its right over other users' files.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        let mut own = table.members(&net.settings.name).filter(|(host, _)| host.id == net.me);
        Ok(Meeting {
            folder,
            path,
            listener,
            _lock: lock,
            own: own.next().and_then(|(_, address)| address),
            find: find.clone(),
            door: None,
            next_door: 0,
            told: HashMap::new(),
        })
    }

    /// Makes links and takes leave of those that are gone.
    pub fn keep(mut self, net: &Arc<Net>) {
        let mut strangers: Vec<Stranger> = Vec::new();
        let (mut next_call, mut next_ask) = (0, 0);
        while !net.is_stopped() {
            self.look_after_door(net);
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
            let far = links.iter().any(|link| link.way().is_some());
            if far && now >= next_ask {
                next_ask = now + far::ASK;
                for link in &links {
                    if link.way().is_some_and(|way| way.why_over().is_some() || !way.ask(now)) {
                        link.give_up();
                    }
                }
            }
            let mut fds: Vec<(RawFd, i16)> =
                [net.keeper.fd(), self.listener.as_raw_fd()].map(|fd| (fd, libc::POLLIN)).to_vec();
            fds.extend(strangers.iter().map(|stranger| (stranger.socket.as_raw_fd(), libc::POLLIN)));
            fds.extend(links.iter().map(|link| (link.socket(), libc::POLLIN)));
            fds.extend(self.door.iter().flat_map(Door::descriptors));
            let busy = missing || !strangers.is_empty() || self.door.as_ref().is_some_and(Door::is_busy);
            let limits = [
                busy.then_some(RETRY),
                far.then_some(far::ASK / 1_000_000),
                (self.wants_door(net) && self.door.is_none()).then_some(RETRY_DOOR / 1_000_000),
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
            // A link says nothing there: if there is something to read, it is the end.
            for (link, ended) in links.iter().zip(spoke) {
                let over = link.way().and_then(|way| way.why_over());
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
                strangers.push(Stranger { socket, offered: None, until: sys::now() + MANNERS });
            }
            let news = self.door.as_mut().map(|door| door.go_on(net)).unwrap_or_default();
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

    /// Whether hosts of other machines are to find us: we have an address, and so has one of them.
    fn wants_door(&self, net: &Net) -> bool {
        self.own.is_some() && net.peers.current().list.iter().any(|peer| peer.address.is_some())
    }

    /// Opens the door for hosts of other machines, if there are to be any; again and again, as what it needs may come later.
    fn look_after_door(&mut self, net: &Net) {
        let Some(own) = self.own.filter(|_| self.wants_door(net)) else {
            self.door = None;
            return net.set_between(None);
        };
        if net.was_reloaded() {
            self.next_door = 0;
            // Its links end with it: only if the key, or the fabric, is another one.
            self.door.take_if(|door| (self.find)().is_ok_and(|means| means != *door.means()));
        }
        if self.door.is_some() || sys::now() < self.next_door {
            return;
        }
        self.next_door = sys::now() + RETRY_DOOR;
        match (self.find)().and_then(|means| Door::open(net, own, means)) {
            Ok(door) => {
                eprintln!(
                    "shunt ether: {}: between hosts by {}, at {own}",
                    net.settings.name,
                    door.provider()
                );
                net.set_between(Some(format!("by {}, at {own}", door.provider())));
                self.told.remove(OTHERS);
                self.door = Some(door);
            }
            Err(why) => {
                net.set_between(Some(format!("not possible: {why}")));
                self.trouble(net, None, OTHERS, &why);
            }
        }
    }

    /// Says what is wrong, if that is new.
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

    /// Calls a host: where memory can be shared with it, or else at its address. What comes of it at the latter, the door tells.
    fn call(&mut self, net: &Net, id: u16, address: Option<SocketAddr>) -> Option<Stranger> {
        match self.call_here(net, id) {
            Ok(Some(stranger)) => return Some(stranger),
            Ok(None) => {}
            Err(error) => self.trouble(net, Some(id), &of_host(id), &format!("cannot be called: {error}")),
        }
        if let (Some(door), Some(address)) = (&mut self.door, address)
            && !door.knows(id)
            && let Err(error) = door.call(net, id, address)
        {
            self.trouble(net, Some(id), &of_host(id), &format!("{address}: {error}"));
        }
        None
    }

    /// Connects to a host, if it is there, in the folder that we have in common.
    fn call_here(&self, net: &Net, id: u16) -> io::Result<Option<Stranger>> {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, WouldBlock};
        let absent = [BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, WouldBlock];
        let offered = seqpacket(&self.folder.join(format!("{id:02}.sock")), false).and_then(|socket| {
            let end = End::new(&net.settings)?;
            end.offer(&socket, &net.settings, net.me, id)?;
            Ok(Stranger { socket, offered: Some((end, id)), until: sys::now() + MANNERS })
        });
        match offered {
            Ok(stranger) => Ok(Some(stranger)),
            Err(error) if absent.contains(&error.kind()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes what a stranger says; then it is a peer, or nobody.
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
                eprintln!("shunt ether: {}: whoever connected is not linked: {error}", net.settings.name)
            }
        }
    }

    fn changed(&mut self, net: &Net, id: u16, link: Option<Arc<Link>>) {
        if link.is_some() {
            // What is wrong with it from now on is new.
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

/// What a trouble with a host is said of.
fn of_host(id: u16) -> String {
    format!("host {id} is")
}
