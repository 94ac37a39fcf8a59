//! Domains: those that libfabric finds, the one that is open, and how links are made over it. One
//! end listens, the other connects, and both send a hello (see [`crate::wire`]).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::IpAddr;
use std::ptr;
use std::sync::{Arc, Mutex};

use crate::abi::{self, Domain, Ep, Eq, EqAttr, EqCmEntry, EqErrEntry, Fabric, Fid, Info, PassiveEp};
use crate::error::Error;
use crate::library::{Infos, Library};
use crate::mutex::lock;
use crate::wire::SHORT;

/// The most bytes that one end can send with its request for a link; some providers allow no more.
pub const WORDS: usize = 56;
/// The most bytes of an address, with any provider.
const ADDRESS: usize = 128;
/// Receive buffers that are kept posted: as many messages can be under way.
pub(crate) const POSTED: usize = 64;
/// Operations that can be under way on a link. More cost memory and make it no faster.
const OPERATIONS: usize = 64;
/// Providers that are not used: superseded, experimental, or for one host, where there is shared
/// memory.
const NOT_USED: [&str; 5] = ["sockets", "net", "shm", "udp", "lpp"];
/// The provider that runs anywhere, and is no faster than the kernel's TCP.
pub const LAST: &str = "tcp";

/// A domain that links can be made over.
pub struct Found {
    /// libfabric's provider: `verbs`, `tcp`...
    pub provider: String,
    /// The device, as its provider calls it.
    pub domain: String,
    info: Infos,
}

/// All domains that have reliable-connected endpoints and remote writes, best first. `provider`:
/// only of this one; `at`: only those that this address of the host can use.
pub fn find(provider: Option<&str>, at: Option<IpAddr>) -> Result<Vec<Found>, Error> {
    let library = Library::get()?;
    let infos = match Infos::ask(library, at, wish) {
        Ok(infos) => infos,
        Err(libc::ENODATA) => return Ok(Vec::new()),
        Err(error) => return Err(library.error("fi_getinfo", error)),
    };
    let mut found: Vec<Found> = infos
        .each()
        // SAFETY: an element of a list that lives, with all its attributes.
        .filter(|&at| unsafe { (*(*at).ep_attr).kind } == abi::EP_MSG)
        .map(|at| {
            // SAFETY: an element of a list that lives; its attributes are there, and names are C
            // strings or null.
            let provider = unsafe { text((*(*at).fabric_attr).prov_name) };
            // SAFETY: as above.
            let domain = unsafe { text((*(*at).domain_attr).name) };
            Ok(Found { provider, domain, info: infos.copy(at)? })
        })
        .collect::<Result<_, Error>>()?;
    found.retain(|found| {
        let wanted = match provider {
            Some(wanted) => found.provider == wanted,
            None => !NOT_USED.contains(&found.provider.as_str()),
        };
        wanted && Traits::of(&found.info).inject >= SHORT
    });
    // Stable: otherwise in libfabric's order.
    found.sort_by_key(|found| found.provider == LAST);
    Ok(found)
}

/// The features that links need, and the modes that they can follow.
fn wish(hints: &mut Info) {
    hints.caps = abi::MSG | abi::RMA | abi::WRITE | abi::REMOTE_WRITE | abi::SEND | abi::RECV;
    hints.mode = abi::RX_CQ_DATA | abi::CONTEXT | abi::CONTEXT2;
    // This does not ask for a kind of endpoint: verbs, asked for reliable-connected ones, wants an
    // address, too.
    // SAFETY: fi_allocinfo() gives hints all their parts.
    unsafe {
        (*hints.tx_attr).size = OPERATIONS;
        (*hints.rx_attr).size = POSTED;
        (*hints.domain_attr).mr_mode =
            abi::MR_LOCAL | abi::MR_VIRT_ADDR | abi::MR_ALLOCATED | abi::MR_PROV_KEY;
        (*hints.domain_attr).threading = abi::THREAD_SAFE;
        (*hints.domain_attr).resource_mgmt = abi::RM_ENABLED;
    }
}

/// # Safety
/// A C string, or null.
unsafe fn text(at: *const c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: the caller's word.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// An event, for the caller of [`Nic::event`].
#[derive(Debug)]
pub enum Event {
    /// A peer asks for a link, with these words: accept it or refuse it.
    Asked(Asked, Vec<u8>),
    /// The link with this endpoint is established.
    Connected(Key),
    /// The link is over.
    Over(Key, String),
    /// The device was removed, and with it all links.
    Gone(String),
}

/// Identifies an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(usize);

impl Key {
    pub(crate) fn of(fid: *const Fid) -> Key {
        Key(fid as usize)
    }
}

/// A request for a link.
pub struct Asked {
    nic: Arc<Nic>,
    info: Option<Infos>,
}

impl std::fmt::Debug for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Asked")
    }
}

impl Asked {
    /// An endpoint that answers the request. Closing it refuses the request. If there can be no
    /// endpoint, the request is refused here.
    pub(crate) fn endpoint(mut self) -> Result<*mut Ep, Error> {
        let info = self.info.as_ref().expect("this takes it, and self");
        let endpoint = self.nic.endpoint(info)?;
        self.info = None;
        Ok(endpoint)
    }
}

impl Drop for Asked {
    /// A request that nobody accepts is refused.
    fn drop(&mut self) {
        if let Some(info) = &self.info {
            // SAFETY: the request is open, and the passive endpoint lives as long as the domain.
            unsafe {
                let listener = self.nic.listener;
                ((*(*listener).cm).reject)(listener, (*info.first()).handle, ptr::null(), 0);
            }
        }
    }
}

/// A domain that was opened.
pub struct Nic {
    pub(crate) library: &'static Library,
    pub(crate) fabric: *mut Fabric,
    pub(crate) domain: *mut Domain,
    eq: *mut Eq,
    /// One thread reads it at a time.
    reading: Mutex<()>,
    listener: *mut PassiveEp,
    address: Vec<u8>,
    info: Infos,
    pub(crate) traits: Traits,
}

/// Properties of the provider.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traits {
    /// Registered memory is addressed by its address in the process, not by an offset.
    pub by_address: bool,
    /// The provider chooses keys.
    pub own_keys: bool,
    /// Writes do not become visible in their order by themselves.
    pub fenced: bool,
    /// The most bytes that can be written from memory that is free again at once.
    pub inject: usize,
    /// Operations that can be under way.
    pub operations: usize,
}

// SAFETY: libfabric was asked for FI_THREAD_SAFE, so all calls on its objects may be made by any
// thread.
unsafe impl Send for Nic {}
// SAFETY: as above.
unsafe impl Sync for Nic {}

impl Nic {
    /// Opens a domain and listens there, at an address that the provider chooses.
    pub fn open(found: &Found) -> Result<Arc<Nic>, Error> {
        let library = Library::get()?;
        let info = found.info.copy(found.info.first())?;
        let mut nic = Nic {
            library,
            fabric: ptr::null_mut(),
            domain: ptr::null_mut(),
            eq: ptr::null_mut(),
            reading: Mutex::default(),
            listener: ptr::null_mut(),
            address: Vec::new(),
            traits: Traits::of(&info),
            info,
        };
        let at = nic.info.first();
        let wrong = |what, result: c_int| library.check(what, result as isize).map(drop);
        // SAFETY: `at` is a description from fi_getinfo(); each object is opened from one that is
        // open, is written where it is to be, and closed by Drop, also after an error here.
        unsafe {
            wrong("fi_fabric", (library.fabric)((*at).fabric_attr, &mut nic.fabric, ptr::null_mut()))?;
            let mut attr = EqAttr {
                size: 0,
                flags: 0,
                wait_obj: abi::WAIT_FD,
                signaling_vector: 0,
                wait_set: ptr::null_mut(),
            };
            let ops = (*nic.fabric).ops;
            wrong("fi_eq_open", ((*ops).eq_open)(nic.fabric, &mut attr, &mut nic.eq, ptr::null_mut()))?;
            wrong("fi_domain", ((*ops).domain)(nic.fabric, at, &mut nic.domain, ptr::null_mut()))?;
            wrong("fi_passive_ep", ((*ops).passive_ep)(nic.fabric, at, &mut nic.listener, ptr::null_mut()))?;
            let listener = &raw mut (*nic.listener).fid;
            wrong("fi_pep_bind", ((*(*listener).ops).bind)(listener, &raw mut (*nic.eq).fid, 0))?;
            let cm = (*nic.listener).cm;
            wrong("fi_listen", ((*cm).listen)(nic.listener))?;
            let mut address = [0u8; ADDRESS];
            let mut len = address.len();
            wrong("fi_getname", ((*cm).getname)(listener, address.as_mut_ptr().cast(), &mut len))?;
            nic.address = address.get(..len).ok_or(Error::Address)?.to_vec();
        }
        Ok(Arc::new(nic))
    }

    /// The address where it listens, in the provider's own form.
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// A description for an endpoint that connects to this address, which verbs wants to know from
    /// the beginning.
    pub(crate) fn description(&self, to: &[u8]) -> Result<Infos, Error> {
        let info = self.info.copy(self.info.first())?;
        // SAFETY: the copy is ours; fi_freeinfo() frees its parts by free(), an older destination
        // included.
        unsafe {
            // Providers read as many bytes as this kind of address has.
            let at = libc::calloc(1, to.len().max(ADDRESS));
            if at.is_null() {
                return Err(Error::Memory(libc::ENOMEM));
            }
            ptr::copy_nonoverlapping(to.as_ptr(), at.cast::<u8>(), to.len());
            let info = &mut *info.first();
            libc::free(info.dest_addr);
            (info.dest_addr, info.dest_addrlen) = (at, to.len());
        }
        Ok(info)
    }

    /// A new endpoint, to be closed by the caller.
    pub(crate) fn endpoint(&self, info: &Infos) -> Result<*mut Ep, Error> {
        let mut endpoint = ptr::null_mut();
        // SAFETY: the domain is open, and `info` describes an endpoint of it.
        let result = unsafe {
            ((*(*self.domain).ops).endpoint)(self.domain, info.first(), &mut endpoint, ptr::null_mut())
        };
        self.library.check("fi_endpoint", result as isize)?;
        Ok(endpoint)
    }

    /// Binds an endpoint to the events.
    pub(crate) fn bind(&self, endpoint: *mut Fid) -> Result<(), Error> {
        // SAFETY: both are open.
        let result = unsafe { ((*(*endpoint).ops).bind)(endpoint, &raw mut (*self.eq).fid, 0) };
        self.library.check("fi_ep_bind", result as isize).map(drop)
    }

    /// The descriptor that is readable when there may be events, after [`Nic::may_sleep`].
    pub fn descriptor(&self) -> Result<c_int, Error> {
        // SAFETY: an open event queue with a descriptor.
        unsafe { descriptor(self.library, &raw mut (*self.eq).fid) }
    }

    /// Whether its descriptor, and those of these completion queues, will become readable for
    /// everything that comes from now on. Else something may be there already.
    pub(crate) fn may_sleep(&self, queues: impl Iterator<Item = *mut Fid>) -> bool {
        // SAFETY: all are open.
        unsafe {
            let mut all: Vec<*mut Fid> = queues.chain([&raw mut (*self.eq).fid]).collect();
            ((*(*self.fabric).ops).trywait)(self.fabric, all.as_mut_ptr(), all.len() as c_int) == 0
        }
    }

    /// The next event, if there is one.
    pub fn event(self: &Arc<Nic>) -> Option<Event> {
        /// Room for the peer's words behind the event.
        #[repr(C, align(8))]
        struct Entry(EqCmEntry, [u8; 256]);
        let _one = lock(&self.reading);
        loop {
            let mut entry = Entry(EqCmEntry { fid: ptr::null_mut(), info: ptr::null_mut() }, [0; 256]);
            let mut event = 0;
            // SAFETY: an open event queue; the entry has the size that is told.
            let got = unsafe {
                ((*(*self.eq).ops).read)(self.eq, &mut event, (&raw mut entry).cast(), size_of::<Entry>(), 0)
            };
            if got == -abi::EAVAIL {
                return self.error();
            }
            let words = usize::try_from(got).ok()?.checked_sub(size_of::<EqCmEntry>())?;
            match event {
                abi::EVENT_CONNREQ => {
                    let info = Infos::given(self.library, entry.0.info);
                    let asked = Asked { nic: Arc::clone(self), info: Some(info) };
                    return Some(Event::Asked(asked, entry.1[..words.min(256)].to_vec()));
                }
                abi::EVENT_CONNECTED => return Some(Event::Connected(Key::of(entry.0.fid))),
                abi::EVENT_SHUTDOWN => {
                    return Some(Event::Over(Key::of(entry.0.fid), "the peer has closed it".into()));
                }
                _ => {}
            }
        }
    }

    fn error(&self) -> Option<Event> {
        // SAFETY: all zeroes is a valid entry.
        let mut entry: EqErrEntry = unsafe { std::mem::zeroed() };
        // SAFETY: an open event queue.
        let got = unsafe { ((*(*self.eq).ops).readerr)(self.eq, &mut entry, 0) };
        let why = (got > 0).then(|| self.library.text(entry.err))?;
        Some(if entry.err == libc::ENODEV { Event::Gone(why) } else { Event::Over(Key::of(entry.fid), why) })
    }
}

/// The descriptor that becomes readable when something is in a queue.
///
/// # Safety
/// The queue is open and was opened with FI_WAIT_FD.
pub(crate) unsafe fn descriptor(library: &'static Library, queue: *mut Fid) -> Result<c_int, Error> {
    let mut fd: c_int = -1;
    let to: *mut c_void = (&raw mut fd).cast();
    // SAFETY: the caller's word.
    let result = unsafe { ((*(*queue).ops).control)(queue, abi::CONTROL_GETWAIT, to) };
    library.check("fi_control(FI_GETWAIT)", result as isize)?;
    Ok(fd)
}

/// Closes an object, if there is one.
pub(crate) fn close(fid: *mut Fid) {
    if !fid.is_null() {
        // SAFETY: open, and not used any more by anybody.
        unsafe { ((*(*fid).ops).close)(fid) };
    }
}

impl Traits {
    fn of(info: &Infos) -> Traits {
        // SAFETY: a description from fi_getinfo() has all its parts.
        let (tx, ep, domain) = unsafe {
            let info = &*info.first();
            (&*info.tx_attr, &*info.ep_attr, &*info.domain_attr)
        };
        let wanted = abi::ORDER_WAW | abi::ORDER_SAW | abi::ORDER_SAS;
        Traits {
            by_address: domain.mr_mode & abi::MR_VIRT_ADDR != 0,
            own_keys: domain.mr_mode & abi::MR_PROV_KEY != 0,
            fenced: tx.msg_order & wanted != wanted || ep.max_order_waw_size == 0,
            inject: tx.inject_size,
            operations: tx.size,
        }
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        close(self.listener.cast());
        close(self.domain.cast());
        close(self.eq.cast());
        close(self.fabric.cast());
    }
}
