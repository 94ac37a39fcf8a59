//! Messages to users about connections that are not made.

use std::collections::BTreeSet;
use std::sync::Mutex;

use ofi::mutex::lock;

/// Writes a message to standard error, as other errors without a handler are: once, as programs try
/// again and again.
pub fn note(text: &str) {
    const MOST: usize = 100;
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = lock(&SAID);
    if said.len() < MOST && said.insert(text.to_string()) {
        eprintln!("vipl: {text}");
    }
}
