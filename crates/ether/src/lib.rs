//! An Ethernet whose wire is not Ethernet, after "Low-latency Linux drivers for Ethernet over high-speed networks": a TAP device above, and
//! below it one of two drivers. **ETHOS** sends each frame as one UDP datagram with nothing before it, so that whatever speaks
//! raw frames in UDP (QEMU's `-netdev dgram`) takes part. **ETHOM** puts it on the message queue that the peer has in the fabric: memory
//! between namespaces and containers of one machine, remote memory between machines.
//!
//! A frame goes to the host that the last bytes of its destination address name ([`mac`]); the table of hosts ([`table`]) is
//! one file, the same on every host. This is a daemon's code: ordinary Rust, with threads and allocation.
//!
//! Read in this order: [`table`], [`mac`], [`frame`] (what is let in), [`peers`], [`net`] (what both drivers share), [`ethos`],
//! [`ethom`] with [`segment`], [`link`](mod@link), [`meeting`] and [`far`], [`running`], [`daemon`] and [`control`].
#![deny(missing_docs)]

pub mod caps;
pub mod control;
pub mod daemon;
pub mod dump;
pub mod ethom;
pub mod ethos;
pub mod far;
pub mod frame;
pub mod learned;
pub mod link;
pub mod mac;
pub mod meeting;
pub mod net;
pub mod pcap;
pub mod peers;
pub mod poll;
pub mod running;
pub mod segment;
pub mod stats;
pub mod sys;
pub mod table;
pub mod tap;
pub mod vnet;
