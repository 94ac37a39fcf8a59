//! An Ethernet whose wire is not Ethernet, after "Low-latency Linux drivers for Ethernet over
//! high-speed networks": a TAP device above, and below it one of two drivers. docs/ether.md is for
//! users. This is a daemon's code: ordinary Rust, with threads and allocation.
//!
//! * **ETHOS** ([`ethos`]) sends each frame as one UDP datagram with nothing before it, by recvmmsg
//!   and sendmmsg. So every program that exchanges raw frames in UDP (QEMU's `-netdev dgram`) can
//!   take part. Hellos are frames of the ethertype for experiments. So are super-frames (with the
//!   kernel's offload header) to peers whose last hello says that they take them, if they go there
//!   in one piece (the keeper asks the kernel for the way's MTU). For all others they are cut up
//!   ([`vnet`]), and those segments go in one sendmsg with UDP_SEGMENT; where the kernel refuses
//!   that (a frame does not fit the way there whole), one by one.
//! * **ETHOM** ([`ethom`], [`link`](mod@link)) puts each frame, with the kernel's offload header,
//!   on the message queue that the peer has in the fabric ([`fabric::frames`]). On one machine a
//!   link is a segment of each end and a UNIX socket, whose end is the peer's. The socket has a
//!   path, as abstract names are each network namespace's own. The host with the lower number
//!   connects; a lock on a file makes two daemons of one host impossible. The parts of a frame that
//!   are checked are copied first, and the copy goes to the kernel; the payload goes there straight
//!   from shared memory (writev).
//! * **ETHOM between machines** ([`remote`], [`discovery`]): the same queues over a link of `ofi`.
//!   The two hosts connect by TCP, prove the cluster's key by the agents' channel, and tell each
//!   other their fabric's addresses. The channel then stays, unused, as its end is the peer's. A
//!   frame is gathered in the shadow and goes in one write, a word, a stimulus. The receiver helps
//!   while it polls and leaves that to the port's thread when it sleeps. Both ends ask each other
//!   twice a second to return a random number. A host that is silent for 3 s is given up, also one
//!   that sends and never reads; a thread waits at most 0.5 s to send to one peer
//!   (`Owner::patience`).
//! * **Threads**: each net has three. One reads the device and sends, one receives and writes it,
//!   and a *keeper* keeps the list of peers. Threads that carry frames take no lock: peers and
//!   links are a snapshot ([`peers`]) that is replaced, and they compare one number to see whether
//!   there is a newer one.
//! * **Waiting** ([`poll`]): a thread polls, letting others run in between, then arms the
//!   tripwires, checks again, and sleeps. It learns whether polling pays.
//! * **A full queue** is waited for, for 0.5 ms, because a TAP device has no back pressure: frames
//!   that are not read there are dropped, TCP or not.
//! * **Hostile input**: everything from the wire goes through `Header::admit`, `Own::parse` and
//!   `Vnet::fits`, which are pure, and fuzzed; so is `Segments::cut`.
//!
//! A frame goes to the host that the last bytes of its destination address name ([`mac`]); the
//! table of hosts ([`table`]) is one file, the same on every host.
//!
//! Read in this order: [`table`], [`mac`], [`frame`] (which frames are admitted), [`peers`],
//! [`net`] (common to both drivers), [`ethos`], [`ethom`] with [`segment`], [`link`](mod@link),
//! [`discovery`] and [`remote`], [`running`], [`daemon`] and [`control`].
#![deny(missing_docs)]

pub mod caps;
pub mod control;
pub mod daemon;
pub mod discovery;
pub mod dump;
pub mod ethom;
pub mod ethos;
pub mod frame;
pub mod learned;
pub mod link;
pub mod mac;
pub mod net;
pub mod pcap;
pub mod peers;
pub mod poll;
pub mod remote;
pub mod running;
pub mod segment;
pub mod stats;
pub mod sys;
pub mod table;
pub mod tap;
pub mod vnet;
