//! Which container a process is in: by the name of its control group, as engines give it, or else
//! by its network namespace.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// What engines put before the id of a container in the name of its control group.
const ENGINES: [&str; 4] = ["docker-", "libpod-", "crio-", "cri-containerd-"];
/// The same before a name.
const NAMES: [&str; 2] = ["lxc.payload.", "machine-"];
/// So much of an id engines show.
const SHOWN: usize = 12;

/// The container of a process, `None` if it is in none that is not ours, or if we may not look.
pub fn container(pid: u32) -> Option<String> {
    let namespaces = |of: &str| {
        let inode = |kind| fs::metadata(format!("/proc/{of}/ns/{kind}")).ok().map(|meta| meta.ino());
        Some((inode("net")?, inode("pid")?))
    };
    let (its, own) = (namespaces(&pid.to_string())?, namespaces("self")?);
    if its == own {
        return None;
    }
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let by_group = groups.lines().find_map(|line| of_group(line.splitn(3, ':').nth(2)?));
    by_group.or_else(|| (its.0 != own.0).then(|| network(its.0, Path::new("/run/netns"))))
}

/// The container that a control group is of: the innermost, where there is one in the other.
fn of_group(path: &str) -> Option<String> {
    path.rsplit('/').find_map(|part| {
        let part = part.strip_suffix(".scope").unwrap_or(part);
        let id = ENGINES.iter().find_map(|engine| part.strip_prefix(engine)).unwrap_or(part);
        if id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Some(id[..SHOWN].to_string());
        }
        let name = NAMES.iter().find_map(|before| part.strip_prefix(before))?;
        Some(name.chars().map(|c| if c.is_control() { '?' } else { c }).collect())
    })
}

/// A network namespace as `ip netns` calls it, or by its number, as lsns(8) does.
fn network(inode: u64, names: &Path) -> String {
    let entries = fs::read_dir(names).into_iter().flatten().flatten();
    let named = entries
        .filter(|entry| fs::metadata(entry.path()).is_ok_and(|meta| meta.ino() == inode))
        .find_map(|entry| entry.file_name().into_string().ok());
    format!("netns:{}", named.unwrap_or_else(|| inode.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_name_control_groups_in_their_ways() {
        let id = "0123456789abcdef".repeat(4);
        for path in [
            format!("/system.slice/docker-{id}.scope"),
            format!("/docker/{id}"),
            format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{id}.scope/container"),
            format!("/kubepods.slice/kubepods-pod7.slice/cri-containerd-{id}.scope"),
            format!("/kubepods/burstable/pod7/{id}"),
            format!("/machine.slice/crio-{id}.scope"),
        ] {
            assert_eq!(of_group(&path).as_deref(), Some("0123456789ab"), "{path}");
        }
        assert_eq!(of_group("/lxc.payload.web/init.scope").as_deref(), Some("web"));
        assert_eq!(of_group("/machine.slice/machine-db.scope/payload").as_deref(), Some("db"));
        assert_eq!(of_group("/system.slice/nginx.service"), None);
        assert_eq!(of_group(&format!("/machine.slice/libpod-conmon-{id}.scope")), None);
    }

    #[test]
    fn a_network_has_the_name_that_it_was_given() {
        let names = tempfile::tempdir().unwrap();
        let file = names.path().join("blue");
        fs::write(&file, "").unwrap();
        let inode = fs::metadata(&file).unwrap().ino();
        assert_eq!(network(inode, names.path()), "netns:blue");
        assert_eq!(network(inode + 1, names.path()), format!("netns:{}", inode + 1));
    }

    #[test]
    fn what_is_here_is_in_no_container() {
        assert_eq!(container(std::process::id()), None);
    }
}
