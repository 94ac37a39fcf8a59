//! A directory of our own under the machine's temporary one, removed when the run is over.

use crate::error::{Error, Result, failed};
use std::ffi::CString;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    pub fn new() -> Result<TempDir> {
        TempDir::below(&std::env::temp_dir())
    }

    /// One on a tmpfs with room for so many bytes: where temporary files are, or else where shared
    /// memory is.
    pub fn in_memory(bytes: u64) -> Result<TempDir> {
        let mut found = Vec::new();
        for base in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
            match tmpfs_room(&base) {
                Some(room) if room >= bytes => return TempDir::below(&base),
                Some(room) => found.push(format!("{} has {} MB", base.display(), room / 1_000_000)),
                None => found.push(format!("{} is not a tmpfs", base.display())),
            }
        }
        Err(Error::Failed(format!(
            "no tmpfs with room for {} MB ({}): set TMPDIR to one",
            bytes.div_ceil(1_000_000),
            found.join(", ")
        )))
    }

    fn below(base: &Path) -> Result<TempDir> {
        let pid = std::process::id();
        for n in 0..1000 {
            let path = base.join(format!("shunt-bench-{pid}-{n}"));
            // Other users need access: PostgreSQL does not run as root.
            match std::fs::DirBuilder::new().mode(0o755).create(&path) {
                Ok(()) => {
                    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
                        .map_err(failed(format!("cannot open up {}", path.display())))?;
                    return Ok(TempDir { path });
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(failed(format!("cannot make {}", path.display()))(e)),
            }
        }
        Err(failed("no free name for a directory")(base.display()))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Free bytes, if this is on a tmpfs.
fn tmpfs_room(path: &Path) -> Option<u64> {
    let path = CString::new(path.as_os_str().as_encoded_bytes()).ok()?;
    // SAFETY: the path is a C string; statfs writes to the local only, which zeroes are valid for.
    let (result, about) = unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        (libc::statfs(path.as_ptr(), &mut about), about)
    };
    let is_tmpfs = result == 0 && about.f_type == libc::TMPFS_MAGIC;
    is_tmpfs.then(|| about.f_bavail * about.f_bsize as u64)
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Files that cannot be removed are left to the machine's own cleaning of temporary files.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
