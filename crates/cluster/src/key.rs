//! The cluster's key: a file with 32 random bytes in hexadecimal, which only its owner may read. A
//! process that has it can introduce processes.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use options::Options;

/// The key.
pub type Key = [u8; 32];

/// Makes a new key, in a file that is not there yet.
pub fn make(path: &Path) -> Result<(), String> {
    let mut key: Key = [0; 32];
    let done = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut key)).and_then(|()| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        writeln!(file, "{}", hex(&key))?;
        file.sync_all()
    });
    done.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            format!("{}: is there already; remove it if no host uses it any more", path.display())
        }
        _ => format!("{}: {error}", path.display()),
    })
}

/// The file with the key, as the options name it.
pub fn file(options: &Options) -> Result<PathBuf, String> {
    if let Some(path) = &options.cluster_key {
        return Ok(OsStr::from_bytes(path.as_bytes()).into());
    }
    let of_user = match std::env::var_os("XDG_CONFIG_HOME").filter(|dir| Path::new(dir).is_absolute()) {
        Some(dir) => Some(PathBuf::from(dir)),
        None => std::env::var_os("HOME").map(|home| Path::new(&home).join(".config")),
    };
    let of_user = of_user.map(|dir| dir.join("shunt.key")).filter(|path| path.exists());
    let of_system = || Some(PathBuf::from("/etc/shunt.key")).filter(|path| path.exists());
    of_user.or_else(of_system).ok_or_else(|| {
        "there is no key, in ~/.config/shunt.key or /etc/shunt.key: make one (shunt agent new-key FILE), copy it to each host, or say \
         where it is (SHUNT_CLUSTER_KEY)"
            .into()
    })
}

/// Reads a key.
pub fn read(path: &Path) -> Result<Key, String> {
    let wrong = |why: String| format!("{}: {why}", path.display());
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            wrong("there is no key; make one (shunt agent new-key FILE), and copy it to each host".into())
        }
        _ => wrong(error.to_string()),
    })?;
    let meta = file.metadata().map_err(|error| wrong(error.to_string()))?;
    if meta.mode() & 0o077 != 0 {
        return Err(wrong(format!("others may read it (mode {:o}); chmod 600", meta.mode() & 0o777)));
    }
    let mut text = String::new();
    let len = file.take(4096).read_to_string(&mut text);
    len.map_err(|error| wrong(error.to_string()))?;
    unhex(text.trim())
        .ok_or_else(|| wrong("is not a key: 64 hexadecimal digits, as shunt agent new-key makes".into()))
}

fn hex(key: &Key) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Key> {
    let mut key = [0; 32];
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_key_is_made_once_and_read_by_its_owner_alone() {
        let dir = std::env::temp_dir().join(format!("shunt-key-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("key");
        assert!(read(&path).unwrap_err().contains("new-key"));
        make(&path).unwrap();
        let key = read(&path).unwrap();
        assert_ne!(key, [0; 32]);
        assert!(make(&path).unwrap_err().contains("already"));
        assert_eq!(read(&path).unwrap(), key, "it is as it was");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read(&path).unwrap_err().contains("chmod 600"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for wrong in ["", "12", &"g".repeat(64), &"é".repeat(32)] {
            fs::write(&path, wrong).unwrap();
            assert!(read(&path).is_err(), "{wrong}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
