//! Files of the host that sandboxes see: those of the template `host`, and those that the node shows in `/proc`.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use coffer_core::Boot;
use coffer_engine::Engine as _;

use crate::harness::{Home, Sandbox, TestNode, small};

crate::tests![
    what_others_cannot_read_on_the_host_cannot_be_read_inside,
    public_files_of_the_host_are_the_sandboxs_to_change,
    files_in_proc_belong_to_no_one_inside,
    a_file_that_is_held_delays_no_one,
];

const SECRET: &str = "only-for-the-host";

/// A directory in the host's `/usr`, removed with the test.
struct InUsr(PathBuf);

impl InUsr {
    fn new() -> Self {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = format!("/usr/local/share/coffer-test-{}-{number}", std::process::id());
        fs::create_dir(&path).unwrap();
        set_mode(Path::new(&path), 0o755);
        Self(path.into())
    }

    /// A script that prints the secret when it is read or run.
    fn file(&self, name: &str, mode: u32) {
        let path = self.0.join(name);
        fs::write(&path, format!("#!/bin/sh\necho {SECRET}\n")).unwrap();
        set_mode(&path, mode);
    }

    fn directory(&self, name: &str, mode: u32) {
        fs::create_dir(self.0.join(name)).unwrap();
        self.file(&format!("{name}/inner"), 0o755);
        set_mode(&self.0.join(name), mode);
    }
}

impl Drop for InUsr {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

async fn on_host_template(node: &TestNode) -> Sandbox {
    let spec = coffer_wire::node::CreateSandbox { template: "host".into(), ..crate::harness::spec(small()) };
    let placement = node.engine.create(&spec).await.unwrap();
    Sandbox { id: spec.sandbox, placement }
}

/// Everything that root inside may try, with `$f` for the file; each attempt that works prints the secret.
/// The overlay copies a file up for most of them.
const WAYS: [&str; 14] = [
    "cat $f",
    "$f",
    "/lib64/ld-linux-x86-64.so.2 $f; /lib/ld-linux-aarch64.so.1 $f; sh $f",
    "cp $f /tmp/copy; cat /tmp/copy",
    "python3 -c \"import mmap,os; print(mmap.mmap(os.open('$f', 0), 0, prot=mmap.PROT_READ)[:])\"",
    "dd if=$f bs=1 count=64 iflag=direct; dd if=$f bs=1 count=64",
    "ln $f $f.link; cat $f.link; cp -l $f $f.l2; cat $f.l2",
    "ln -s $f /tmp/soft; cat /tmp/soft",
    "chown 1000:1000 $f; cat $f; chown 0:0 $f; cat $f",
    "chmod 777 $f; cat $f; $f",
    "setfacl -m u:root:rwx $f; cat $f",
    "echo >> $f; cat $f; truncate -s +1 $f; cat $f",
    "mv $f $f.moved; cat $f.moved; mv $f.moved $f; cat $f",
    "chmod 755 $(dirname $f); cat $f; mv $(dirname $f) $(dirname $f)2; cat $(dirname $f)2/*; tar c $(dirname $f)2",
];

/// Runs every attempt as root and as another user; panics if the secret is printed.
async fn attack(sandbox: &Sandbox, file: &Path) {
    for way in WAYS {
        let file = file.display();
        let script = format!(
            "cat >/tmp/way <<'WAY'\nf={file}\n{way}\nWAY\nsh /tmp/way 2>&1; rm -f /tmp/copy /tmp/soft\n\
             setpriv --reuid 1000 --regid 1000 --clear-groups sh /tmp/way 2>&1; rm -f /tmp/copy /tmp/soft"
        );
        let (_, said) = sandbox.script(&script).await;
        assert!(!said.contains(SECRET), "{script}: {said}");
    }
}

async fn what_others_cannot_read_on_the_host_cannot_be_read_inside() {
    let usr = InUsr::new();
    let closed = [("private", 0o600), ("of-a-group", 0o640), ("set-uid", 0o4750), ("only-run", 0o711)];
    for (name, mode) in closed {
        usr.file(name, mode);
    }
    usr.directory("closed", 0o700);
    usr.directory("listed-only", 0o754);
    let later = InUsr::new();
    later.directory("directory", 0o755);
    later.file("file", 0o644);
    let home = Home::new();
    let node = home.start().await;
    let sandbox = on_host_template(&node).await;
    let seen = later.0.join("file");
    assert!(sandbox.output(&format!("cat {}", seen.display())).await.contains(SECRET), "public until now");

    // Files that appear or are closed while the sandbox runs.
    for (name, mode) in closed {
        usr.file(&format!("new-{name}"), mode);
    }
    usr.directory("new-closed", 0o750);
    set_mode(&seen, 0o600);

    let inner = ["closed/inner", "listed-only/inner", "new-closed/inner"];
    let new = closed.map(|(name, _)| format!("new-{name}"));
    let names = closed.iter().map(|(name, _)| name.to_string()).chain(new);
    let names: Vec<_> = names.chain(inner.map(String::from)).collect();
    for name in &names {
        attack(&sandbox, &usr.0.join(name)).await;
    }
    assert_ne!(sandbox.script(&format!("ls {}", usr.0.join("new-closed").display())).await.0, 0);
    // The host's own are as they were.
    let modes = closed.map(|(name, _)| fs::metadata(usr.0.join(name)).unwrap().mode() & 0o7777);
    assert_eq!(modes, closed.map(|(_, mode)| mode));

    // The same for its next run, for a fork that starts with its changes to these names, and for other
    // sandboxes. Files that the first run could still read are closed to these too.
    node.engine.stop(sandbox.id).await.unwrap();
    node.engine.start(sandbox.id, Boot::Cold).await.unwrap();
    attack(&sandbox, &usr.0.join("new-private")).await;
    assert_ne!(sandbox.script(&format!("cat {}", seen.display())).await.0, 0);
    let fork = node.child(&node.snapshot(&sandbox).await).await;
    attack(&fork, &usr.0.join("new-private")).await;
    node.stop().await;
    set_mode(&later.0.join("directory"), 0o700);
    let node = home.start().await;
    let fresh = on_host_template(&node).await;
    attack(&fresh, &later.0.join("directory/inner")).await;
    attack(&fresh, &seen).await;
    for name in &names {
        attack(&fresh, &usr.0.join(name)).await;
    }
    node.stop().await;
}

/// They are replaced and removed, and not changed in place.
async fn public_files_of_the_host_are_the_sandboxs_to_change() {
    let usr = InUsr::new();
    for name in ["replaced", "moved", "mode", "removed"] {
        usr.file(name, 0o755);
    }
    usr.directory("renamed", 0o755);
    let home = Home::new();
    let node = home.start().await;
    let sandbox = on_host_template(&node).await;
    let at = usr.0.display();
    let script = format!(
        "set -e; cd {at}; test \"$(stat -c %u:%g . renamed | sort -u)\" = 0:0; sed -i s/host/guest/ replaced; \
         ./replaced; chmod 600 replaced; stat -c %a replaced; mv moved away; ./away; rm removed; \
         mv renamed again; ./again/inner; echo new >file; mkdir -p again/deeper; mv again/deeper again/deepest; \
         cp -a mode own; chmod 700 own; ! chmod 777 mode 2>/dev/null; rm -r again; \
         cp /usr/bin/id /usr/local/bin/rootid; chmod 4755 /usr/local/bin/rootid; \
         setpriv --reuid 1000 --regid 1000 --clear-groups rootid -u"
    );
    let guest = SECRET.replace("host", "guest");
    assert_eq!(sandbox.output(&script).await, format!("{guest}\n600\n{SECRET}\n{SECRET}\n0"));
    // Programs that change their user do so.
    let passwd = sandbox.output("stat -c %u:%a /usr/bin/su /usr/bin/passwd | sort -u").await;
    assert_eq!(passwd, "0:4755");
    for kept in ["replaced", "moved", "removed", "renamed/inner"] {
        assert!(fs::read_to_string(usr.0.join(kept)).unwrap().contains(SECRET), "{kept}");
    }
    assert!(!usr.0.join("file").exists());

    // A fork has other ids, and moved files are mapped again.
    let fork = node.child(&node.snapshot(&sandbox).await).await;
    assert_eq!(
        fork.output(&format!("cd {at}; mv away further; ./further; ls")).await.lines().next(),
        Some(SECRET)
    );
    node.stop().await;
}

/// The host side of the files that the node mounts in the first sandbox.
fn shown(home: &Home, sandbox: &Sandbox) -> PathBuf {
    home.data_dir().join("pool/f").join(sandbox.id.to_string())
}

const LEASED: [&str; 4] =
    ["/proc/meminfo", "/proc/cpuinfo", "/proc/sys/kernel/random/boot_id", "/run/coffer/agentd"];

async fn files_in_proc_belong_to_no_one_inside() {
    let home = Home::new();
    let node = home.start().await;
    let sandbox = node.create(small()).await;
    for path in LEASED {
        assert_eq!(sandbox.output(&format!("!lease {path}")).await, libc::EACCES.to_string(), "{path}");
        for way in ["chmod 666", "chown 1000", "touch", "truncate -s 0"] {
            assert_ne!(sandbox.script(&format!("{way} {path}")).await.0, 0, "{way} {path}");
        }
    }
    for file in fs::read_dir(shown(&home, &sandbox)).unwrap().flatten() {
        let metadata = file.metadata().unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (0, 0), "{:?}", file.path());
    }
    node.stop().await;
}

async fn a_file_that_is_held_delays_no_one() {
    let home = Home::new();
    let node = home.start().await;
    let (holder, other) = tokio::join!(node.create(small()), node.create(small()));
    // As earlier versions had it, or as a bug of ours may have it again.
    let owner = sandbox_root(&holder).await;
    let meminfo = shown(&home, &holder).join("meminfo");
    chown(&meminfo, Some(owner), Some(owner)).unwrap();
    assert_eq!(holder.output("!lease /proc/meminfo").await, "0", "the attack runs");

    let free = "awk '/^MemFree/ {print $2}' /proc/meminfo";
    let held = holder.output(free).await;
    let before = other.output(free).await;
    let begun = Instant::now();
    let samples = node.engine.stats().await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(3), "sampling took {:?}", begun.elapsed());
    let mut sampled: Vec<_> = samples.iter().map(|sample| sample.sandbox).collect();
    let mut both = vec![holder.id, other.id];
    sampled.sort();
    both.sort();
    assert_eq!(sampled, both);
    assert_ne!(other.output(free).await, before, "the other's figures are brought up to date");
    assert_eq!(holder.output(free).await, held);
    // It ends like any other.
    node.engine.destroy(holder.id).await.unwrap();
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}

/// The host's id of root inside.
async fn sandbox_root(sandbox: &Sandbox) -> u32 {
    sandbox.output("awk '{print $2}' /proc/self/uid_map").await.parse().unwrap()
}
