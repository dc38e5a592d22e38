//! What a sandbox sees and may do: nothing of the host, and only its own resources.

use coffer_core::{Boot, Limits};
use coffer_engine::Engine as _;

use crate::harness::{Home, small};

crate::tests![
    it_is_a_machine_of_its_own,
    nothing_of_the_host_is_seen,
    root_inside_has_few_rights,
    dangerous_calls_are_refused,
    sandboxes_do_not_see_each_other,
    a_confused_root_still_starts,
];

async fn it_is_a_machine_of_its_own() {
    let home = Home::new();
    let node = home.start().await;
    let limits = Limits { cpu_count: 1, memory_mib: 300, ..small() };
    let sandbox = node.create(limits).await;
    let host = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_string();

    assert_eq!(sandbox.output("hostname").await, "e2b.local");
    assert_eq!(sandbox.output("cat /etc/hostname").await, "e2b.local");
    assert!(sandbox.output("cat /etc/hosts").await.contains("e2b.local"));
    let boot_id = sandbox.output("cat /proc/sys/kernel/random/boot_id").await;
    assert_eq!(boot_id.len(), 36);
    assert_ne!(boot_id, host("/proc/sys/kernel/random/boot_id"));
    let machine_id = sandbox.output("cat /etc/machine-id").await;
    assert_eq!(machine_id.len(), 32);
    assert_ne!(machine_id, host("/etc/machine-id"));

    assert_eq!(sandbox.output("nproc").await, "1");
    assert_eq!(sandbox.output("grep -c ^processor /proc/cpuinfo").await, "1");
    assert_eq!(sandbox.output("cat /sys/devices/system/cpu/online").await, "0");
    assert_eq!(sandbox.output("getconf _NPROCESSORS_ONLN").await, "1");
    let total = sandbox.output("awk '/^MemTotal/ {print $2}' /proc/meminfo").await;
    assert_eq!(total, (300 * 1024).to_string());
    // A sample brings the figures inside up to date.
    node.engine.stats().await.unwrap();
    let free = sandbox.output("awk '/^MemFree/ {print $2}' /proc/meminfo").await;
    let free: u64 = free.parse().unwrap();
    assert!(free > 0 && free < 300 * 1024, "{free}");

    // Process 1 is the first of few, and lo is up and alone.
    assert_eq!(sandbox.output("cat /proc/1/comm").await, "agentd");
    let processes: u32 = sandbox.output("ls -d /proc/[0-9]* | wc -l").await.parse().unwrap();
    assert!(processes < 10, "{processes}");
    assert_eq!(sandbox.output("ls /sys/class/net").await, "lo");
    assert_eq!(sandbox.output("cat /sys/class/net/lo/operstate").await, "unknown");
    sandbox.output("test \"$(cat /sys/class/net/lo/flags)\" = 0x9").await;

    // Terminals, shared memory and the usual devices work.
    sandbox.output("script -qec 'test -t 0' /dev/null < /dev/null").await;
    sandbox.output("echo x > /dev/null && head -c 9 /dev/zero | wc -c && echo y > /dev/shm/y").await;
    sandbox.output("test -c /dev/urandom && test -w /dev/full && ! echo x > /dev/full").await;
    assert_eq!(sandbox.output("echo z | cat /dev/stdin").await, "z");
    // The whole environment of process 1.
    let environment = sandbox.output("tr '\\0' '\\n' < /proc/1/environ").await;
    assert_eq!(environment.lines().count(), 1, "{environment}");
    assert!(environment.starts_with("PATH="), "{environment}");
    node.stop().await;
}

async fn nothing_of_the_host_is_seen() {
    let home = Home::new();
    let node = home.start().await;
    let sandbox = node.create(small()).await;
    let data_dir = home.data_dir();
    let mounts = sandbox.output("cat /proc/self/mountinfo").await;
    let host_path = data_dir.parent().unwrap().to_str().unwrap();
    assert!(!mounts.contains(host_path), "{mounts}");
    assert!(!mounts.contains("/dev/vda") && !mounts.contains("/dev/sda"), "{mounts}");
    // No trace of the old root, of the data directory, of the repository or of the host's homes.
    for path in [data_dir.to_str().unwrap(), env!("CARGO_MANIFEST_DIR"), "/root/.cargo", "/etc/shadow.host"] {
        assert_eq!(sandbox.output(&format!("test ! -e {path} && echo unseen")).await, "unseen");
    }
    // The descriptors of process 1: the three standard ones, its listener and this connection.
    let open = sandbox.output("ls -l /proc/1/fd").await;
    assert!(!open.contains("/sys/fs") && !open.contains(host_path), "{open}");
    assert_eq!(
        sandbox.output("readlink /proc/1/fd/0 /proc/1/fd/1 /proc/1/fd/2 | sort -u").await,
        "/dev/null"
    );

    for hidden in ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/cmdline"] {
        assert_eq!(sandbox.output(&format!("cat {hidden} 2>/dev/null | wc -c")).await, "0", "{hidden}");
    }
    for empty in ["/proc/scsi", "/proc/acpi", "/sys/firmware", "/sys/devices/virtual/block"] {
        assert_eq!(sandbox.output(&format!("ls {empty} 2>/dev/null | wc -l")).await, "0", "{empty}");
    }
    for fixed in ["/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches"] {
        let (code, said) = sandbox.script(&format!("echo h > {fixed}")).await;
        assert_ne!(code, 0, "{fixed}: {said}");
    }
    let (code, _) = sandbox.script("echo 1 > /sys/kernel/mm/transparent_hugepage/enabled").await;
    assert_ne!(code, 0);
    assert_eq!(sandbox.output("dmesg 2>&1 | grep -ci 'not permitted'").await, "1");
    let cgroup = sandbox.output("cat /proc/self/cgroup").await;
    assert!(cgroup.lines().filter(|line| line.starts_with("0::")).all(|line| line == "0::/"), "{cgroup}");
    assert!(!cgroup.contains(&sandbox.id.to_string()), "{cgroup}");
    node.stop().await;
}

async fn root_inside_has_few_rights() {
    let home = Home::new();
    let node = home.start().await;
    let sandbox = node.create(small()).await;
    assert_eq!(sandbox.output("id -u").await, "0");
    let map = sandbox.output("cat /proc/self/uid_map").await;
    let map: Vec<u64> = map.split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert_eq!((map[0], map[2]), (0, 65536));
    assert!(map[1] >= 0x7000_0000 && map[1] < 0x8000_0000, "{map:?}");
    assert_eq!(sandbox.output("cat /proc/self/gid_map /proc/self/uid_map | sort -u | wc -l").await, "1");

    // chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service sys_chroot
    // audit_write setfcap
    let kept = [0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 29, 31].iter().fold(0u64, |set, bit| set | 1 << bit);
    for set in ["CapBnd", "CapEff", "CapPrm"] {
        let found = sandbox.output(&format!("awk '/^{set}/ {{print $2}}' /proc/self/status")).await;
        assert_eq!(u64::from_str_radix(&found, 16).unwrap(), kept, "{set}");
    }
    assert_eq!(
        sandbox.output("awk '/^CapInh|^CapAmb/ {print $2}' /proc/self/status | sort -u").await,
        "0".repeat(16)
    );
    assert_eq!(sandbox.output("awk '/^NoNewPrivs/ {print $2}' /proc/self/status").await, "0");
    assert_eq!(sandbox.output("awk '/^Seccomp:/ {print $2}' /proc/self/status").await, "2");
    // Files of the template are root's, and root may change and replace them; those of the host are replaced.
    assert_eq!(sandbox.output("stat -c %u:%g / /usr /usr/bin /etc /etc/hosts | sort -u").await, "0:0");
    sandbox.output("mv /usr/share /usr/shared && echo x >> /etc/profile && chown 7:8 /etc/hosts").await;
    sandbox.output("cp /usr/bin/env /tmp/env && echo x >> /tmp/env && mv /tmp/env /usr/bin/env").await;
    sandbox.output("setpriv --reuid 1000 --regid 1000 --clear-groups true").await;
    // Without no_new_privs, set-user-id programs work: sudo is one.
    sandbox.output("cp /usr/bin/id /usr/local/bin/rootid && chmod 4755 /usr/local/bin/rootid").await;
    let id = sandbox.output("setpriv --reuid 1000 --regid 1000 --clear-groups rootid -u").await;
    assert_eq!(id, "0");
    // No device can be created or used.
    assert_ne!(sandbox.script("mknod /tmp/d b 254 0").await.0, 0);
    assert_ne!(sandbox.script("hostname other").await.0, 0);
    assert_ne!(sandbox.script("ip link set lo down").await.0, 0);
    assert_eq!(sandbox.output("ulimit -c; ulimit -Hc").await, "0\n0");
    node.stop().await;
}

async fn dangerous_calls_are_refused() {
    let home = Home::new();
    let node = home.start().await;
    let sandbox = node.create(small()).await;
    let user = libc::CLONE_NEWUSER;
    let cases = [
        (libc::SYS_unshare, vec![i64::from(user)], libc::EPERM),
        (libc::SYS_unshare, vec![i64::from(libc::CLONE_NEWNS)], libc::EPERM),
        (libc::SYS_clone, vec![i64::from(user | libc::SIGCHLD)], libc::EPERM),
        (libc::SYS_clone3, vec![], libc::ENOSYS),
        (libc::SYS_setns, vec![0, 0], libc::EPERM),
        (libc::SYS_mount, vec![], libc::EPERM),
        (libc::SYS_umount2, vec![], libc::EPERM),
        (libc::SYS_fsopen, vec![], libc::EPERM),
        (libc::SYS_bpf, vec![], libc::EPERM),
        (libc::SYS_io_uring_setup, vec![1], libc::ENOSYS),
        (libc::SYS_userfaultfd, vec![], libc::EPERM),
        (libc::SYS_keyctl, vec![], libc::EPERM),
        (libc::SYS_add_key, vec![], libc::EPERM),
        (libc::SYS_open_by_handle_at, vec![], libc::EPERM),
        (libc::SYS_perf_event_open, vec![], libc::EPERM),
        (libc::SYS_reboot, vec![], libc::EPERM),
        (libc::SYS_ioctl, vec![0, 0x5412], libc::EPERM),
        (libc::SYS_ioctl, vec![0, 0x541c], libc::EPERM),
        (libc::SYS_ioctl, vec![0, 0x5423], libc::EPERM),
        (libc::SYS_fanotify_init, vec![], libc::EPERM),
        (libc::SYS_vhangup, vec![], libc::EPERM),
        // System calls of newer kernels, and unassigned ones.
        (461, vec![], libc::ENOSYS),
        (468, vec![], libc::ENOSYS),
        (599, vec![], libc::ENOSYS),
        (libc::SYS_socket, vec![i64::from(libc::AF_VSOCK), 1], libc::EAFNOSUPPORT),
        (libc::SYS_socket, vec![i64::from(libc::AF_ALG), 5], libc::EAFNOSUPPORT),
        (libc::SYS_socket, vec![i64::from(libc::AF_INET), 1], 0),
        (libc::SYS_getpid, vec![], 0),
    ];
    for (call, arguments, errno) in cases {
        let arguments: Vec<_> = arguments.iter().map(i64::to_string).collect();
        let order = format!("!call {call} {}", arguments.join(" "));
        assert_eq!(sandbox.output(&order).await, errno.to_string(), "{order}");
    }
    assert_ne!(sandbox.script("unshare -U true").await.0, 0);
    assert_ne!(sandbox.script("mount -t tmpfs none /mnt").await.0, 0);
    assert_ne!(sandbox.script("umount /proc/kcore").await.0, 0);
    node.stop().await;
}

async fn sandboxes_do_not_see_each_other() {
    let home = Home::new();
    let node = home.start().await;
    let (one, two) = tokio::join!(node.create(small()), node.create(small()));
    one.output("echo secret > /tmp/x; sleep 1000 >/dev/null 2>&1 &").await;
    assert_eq!(two.output("test ! -e /tmp/x && echo unseen").await, "unseen");
    assert_eq!(two.output("pgrep -c sleep || true").await, "0");
    for namespace in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let link = format!("readlink /proc/self/ns/{namespace}");
        let (left, right) = (one.output(&link).await, two.output(&link).await);
        let host = std::fs::read_link(format!("/proc/self/ns/{namespace}")).unwrap();
        assert_ne!(left, right);
        assert!(left != host.to_string_lossy() && right != host.to_string_lossy(), "{namespace}");
    }
    let base = "awk '{print $2}' /proc/self/uid_map";
    assert_ne!(one.output(base).await, two.output(base).await);
    node.stop().await;
}

async fn a_confused_root_still_starts() {
    let home = Home::new();
    let node = home.start().await;
    let sandbox = node.create(small()).await;
    // Another process of the sandbox cannot unmount these, but their mount points are among its files: the
    // test changes the files from outside, as a sandbox could with the help of a bug.
    let upper = home.data_dir().join("pool/s").join(sandbox.id.to_string()).join("u0");
    node.engine.stop(sandbox.id).await.unwrap();
    for name in ["proc", "dev", "run"] {
        let _ = std::fs::remove_dir_all(upper.join(name));
        let _ = std::fs::remove_file(upper.join(name));
    }
    std::os::unix::fs::symlink("/etc", upper.join("proc")).unwrap();
    std::os::unix::fs::symlink("../../../../..", upper.join("run")).unwrap();
    std::fs::write(upper.join("dev"), "a file").unwrap();
    node.engine.start(sandbox.id, Boot::AsPaused).await.unwrap();
    assert_eq!(
        sandbox.output("cat /proc/1/comm; test -c /dev/null && ls /run/coffer").await,
        "agentd\nagentd"
    );
    node.stop().await;
    assert!(home.belongings().nothing(), "{:?}", home.belongings());
}
