//! The handshake, from each side, once the two ends have found each other.

use core::ffi::c_void;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::hello::{Hello, kind};
use super::line::{Line, PATIENCE_MS};
use crate::abi::{Return, ViAttributes};
use crate::socket::Socket;
use crate::transfer::Memory;
use crate::until::Until;
use crate::vi::{self, Offer};
use crate::{agent, handlers};

/// How long a client waits that has found nobody: it will ask again at once.
pub(super) const NOBODY_NS: u64 = 1_000_000;

/// The server's part of the handshake, from its hello on.
pub(super) fn answer(
    handle: *mut c_void,
    line: &Line,
    offer: &Offer,
    hello: &Hello,
    memory: Arc<Memory>,
) -> Result<(), Return> {
    if !vi::prepare(handle, &memory) {
        return Err(Return::InvalidState);
    }
    let accept = Hello::new(kind::ACCEPT, Some(offer), &hello.to, &hello.from).reaching(&memory);
    if !line.send(&accept, Some(offer)) {
        return Err(Return::Timeout);
    }
    match line.receive(Until::after(PATIENCE_MS))? {
        Some(confirmed) if confirmed.hello.kind == kind::CONFIRM => confirmed.hello.agree(&memory),
        _ => return Err(Return::Timeout),
    }
    connected(handle, line, memory)
}

/// Both ends have everything.
fn connected(handle: *mut c_void, line: &Line, memory: Arc<Memory>) -> Result<(), Return> {
    let socket = match line {
        Line::Near(socket) => socket.as_fd().try_clone_to_owned().ok(),
        Line::Remote(line) => line.descriptor(),
    };
    let wire = memory.theirs.wire().cloned();
    let is_remote = wire.is_some();
    let socket = Arc::new(Socket::new(socket.ok_or(Return::ErrorResource)?, wire));
    agent::listen_to(handle, &socket)?;
    if !vi::established(handle, memory, socket) {
        return Err(Return::InvalidState);
    }
    if is_remote {
        // Messages that it has sent before are read now.
        handlers::kick(handle);
    }
    Ok(())
}

/// Checks the attributes that must be the same at both ends.
pub(super) fn matches(hello: &Hello, own: &ViAttributes) -> Result<(), Return> {
    if hello.level != u32::from(own.reliability_level) {
        Err(Return::InvalidReliabilityLevel)
    } else if hello.most != own.max_transfer_size {
        Err(Return::InvalidMtu)
    } else {
        Ok(())
    }
}

/// The client's part of the handshake.
pub(super) fn ask(
    handle: *mut c_void,
    line: &Line,
    offer: &Offer,
    hello: &Hello,
    until: Until,
) -> Result<ViAttributes, Return> {
    if !line.send(hello, Some(offer)) {
        return Err(Return::NoMatch);
    }
    let heard = match line.receive(until)? {
        Some(heard) if heard.hello.kind == kind::ACCEPT => heard,
        Some(heard) if heard.hello.kind == kind::REJECT => return Err(Return::Reject),
        Some(heard) if heard.hello.kind == kind::MISMATCH => return Err(mismatch(heard.hello.level)),
        // The program that waited has stopped waiting.
        _ => return Err(Return::NoMatch),
    };
    let accepted = heard.hello;
    let memory = line.open(heard, handle, offer).ok_or(Return::ErrorResource)?;
    accepted.agree(&memory);
    let confirm = Hello::new(kind::CONFIRM, None, &hello.from, &hello.to).reaching(&memory);
    if !vi::prepare(handle, &memory) {
        return Err(Return::InvalidState);
    }
    connected(handle, line, memory)?;
    line.send(&confirm, None);
    Ok(accepted.attributes())
}

fn mismatch(code: u32) -> Return {
    match code {
        6 => Return::InvalidReliabilityLevel,
        7 => Return::InvalidMtu,
        8 => Return::InvalidQos,
        _ => Return::ErrorResource,
    }
}

pub(super) fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
