use super::*;

fn git(limits: GitLimits) -> Git {
    Git::new(limits, GitProcesses::default()).unwrap()
}

#[tokio::test]
async fn a_project_has_half_of_the_room() {
    let git = git(GitLimits { transfers: 2, ..GitLimits::default() });
    let (one, two) = (ProjectId::generate(), ProjectId::generate());
    let held = git.transfer(one).await.unwrap();
    assert_eq!(git.transfers.room(one), 0, "a second one of the same project waits");
    let other = git.transfer(two).await.unwrap();
    drop((held, other));
    git.transfer(one).await.unwrap();
}

#[test]
fn a_call_counts_for_the_project_of_its_repository() {
    let (shelf, project) = (Shelf::new("/srv/repositories".into()), ProjectId::generate());
    let path = shelf.path(project, coffer_core::RepositoryId::generate());
    assert_eq!(Call::within(&path).project, Some(project));
    assert_eq!(Call::within(Path::new("/")).project, None);
}

#[tokio::test]
async fn a_project_has_memory_for_so_many_transfers() {
    let limits = GitLimits { memory: 512 << 20, project_memory: 1 << 30, ..GitLimits::default() };
    let git = git(limits);
    let (one, two) = (ProjectId::generate(), ProjectId::generate());
    let held = (git.transfer(one).await.unwrap(), git.transfer(one).await.unwrap());
    let third = tokio::time::timeout(Duration::from_millis(50), git.transfer(one)).await;
    assert!(third.is_err(), "the third waits");
    git.transfer(two).await.unwrap();
    git.transfer_of_file(one).await.unwrap();
    assert!(git.spare_memory(one).is_none(), "transfers come first");
    drop(held);
    let spare = git.spare_memory(one).unwrap();
    let call = Call { spare: Some(spare), ..Call::within(Path::new("/")) };
    assert_eq!(git.memory_of(&call), 1 << 30);
    git.transfer(one).await.unwrap();
}

async fn init(git: &Git, place: &Path) {
    std::fs::create_dir(place).unwrap();
    let call = Call { directory: None, also: Some(place), ..Call::within(place) };
    let path = place.to_string_lossy();
    git.run(call, &["init", "--quiet", "--bare", "--template=", "--", &path]).await.unwrap().good().unwrap();
}

#[tokio::test]
async fn git_follows_no_path_and_no_url() {
    let (git, dir) = (git(GitLimits::default()), tempfile::TempDir::new().unwrap());
    let (one, two) = (dir.path().join("one.git"), dir.path().join("two.git"));
    for place in [&one, &two] {
        init(&git, place).await;
    }
    let pointer = dir.path().join("pointer");
    std::fs::write(&pointer, format!("gitdir: {}\n", two.display())).unwrap();
    for from in
        [pointer.display().to_string(), two.display().to_string(), format!("file://{}", two.display())]
    {
        for config in [vec![], vec!["protocol.file.allow=always".to_string()]] {
            let call = Call { config, ..Call::within(&one) };
            let done = git.run(call, &["fetch", "--quiet", &from]).await.unwrap();
            assert!(done.stderr.contains("transport 'file' not allowed"), "{from}: {}", done.stderr);
        }
    }
}

#[tokio::test]
async fn what_takes_too_long_ends_with_all_it_started() {
    let (git, dir) = (git(GitLimits::default()), tempfile::TempDir::new().unwrap());
    let told = dir.path().join("pid");
    let alias = format!("alias.wait=!echo $$ > {}; sleep 600", told.display());
    let call = Call { time: Some(Duration::from_secs(2)), ..Call::within(dir.path()) };
    let call = Call { directory: None, also: Some(dir.path()), ..call };
    let slow = git.run(call, &["-c", &alias, "wait"]).await;
    assert_eq!(slow.err(), Some(GitError::TimedOut));
    let pid: i32 = std::fs::read_to_string(told).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    for _ in 0..500 {
        if rustix::process::test_kill_process(pid).is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("what git had started still runs");
}

/// Runs a shell as git runs programs, in its own repository; another project's is next to it.
async fn shell(git: &Git, script: &str) -> (Finished, tempfile::TempDir) {
    let dir = tempfile::TempDir::new().unwrap();
    let (own, other) = (dir.path().join("own.git"), dir.path().join("other.git"));
    for place in [&own, &other] {
        init(git, place).await;
    }
    std::fs::write(other.join("secret"), "of another project").unwrap();
    let alias = format!("alias.attack=!{}", script.replace("OTHER", &other.display().to_string()));
    (git.run(Call::within(&own), &["-c", &alias, "attack"]).await.unwrap(), dir)
}

/// Shell commands that must fail.
const ESCAPES: [(&str, &str); 8] = [
    ("another repository", "cat OTHER/secret"),
    ("another repository by a link", "ln -s OTHER link && cat link/secret"),
    ("a file there", "echo x > OTHER/new"),
    ("the way by a process", "cat /proc/self/root/OTHER/secret"),
    ("a process's surroundings", "cat /proc/$PPID/environ"),
    ("what it runs on", "cat /etc/passwd"),
    ("a file of all", "echo x > /tmp/from-git-$$"),
    ("a program of its own", "cp /bin/true own && ./own"),
];

#[tokio::test]
async fn git_reaches_its_own_repository_alone() {
    if !has_landlock() {
        eprintln!("SKIPPED: this kernel has no Landlock");
        return;
    }
    let git = git(GitLimits::default());
    for (what, script) in ESCAPES {
        let (done, _dir) = shell(&git, script).await;
        assert_ne!(done.code, Some(0), "{what}: {}", String::from_utf8_lossy(&done.stdout));
        assert!(done.stderr.contains("ermission denied"), "{what}: {}", done.stderr);
    }
    let (done, _dir) =
        shell(&git, "echo x > new && mkdir a b && mv new a/ && mv a/new b/ && cat b/new").await;
    assert_eq!(done.code, Some(0), "what it is for: {}", done.stderr);
}

#[tokio::test]
async fn objects_of_another_repository_stay_there() {
    if !has_landlock() {
        eprintln!("SKIPPED: this kernel has no Landlock");
        return;
    }
    let (git, dir) = (git(GitLimits::default()), tempfile::TempDir::new().unwrap());
    let (own, other) = (dir.path().join("own.git"), dir.path().join("other.git"));
    for place in [&own, &other] {
        init(&git, place).await;
    }
    let call = Call { stdin: b"of another project".to_vec(), ..Call::within(&other) };
    let secret = git.run(call, &["hash-object", "-w", "--stdin"]).await.unwrap().line().unwrap();
    let read = ["cat-file", "blob", &secret];
    assert_eq!(git.run(Call::within(&other), &read).await.unwrap().code, Some(0));
    std::fs::create_dir_all(own.join("objects/info")).unwrap();
    std::fs::write(own.join("objects/info/alternates"), format!("{}/objects\n", other.display())).unwrap();
    let by_alternate = git.run(Call::within(&own), &read).await.unwrap();
    assert_ne!(by_alternate.code, Some(0), "{by_alternate:?}");
    std::fs::remove_dir_all(own.join("objects")).unwrap();
    std::os::unix::fs::symlink(other.join("objects"), own.join("objects")).unwrap();
    let by_link = git.run(Call::within(&own), &read).await.unwrap();
    assert_ne!(by_link.code, Some(0), "{by_link:?}");
    let pointer = dir.path().join("pointer");
    std::fs::create_dir(&pointer).unwrap();
    std::fs::write(pointer.join(".git"), format!("gitdir: {}\n", other.display())).unwrap();
    let call = Call { directory: None, also: Some(&pointer), ..Call::within(&pointer) };
    let args = ["-C", &pointer.to_string_lossy(), "cat-file", "blob", &secret];
    let by_pointer = git.run(call, &args).await.unwrap();
    assert_ne!(by_pointer.code, Some(0), "{by_pointer:?}");
}

/// Python says which system call failed, and how.
const CALLS: &str = r#"
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
for family, kind in [(socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET6, socket.SOCK_DGRAM),
                     (socket.AF_UNIX, socket.SOCK_STREAM), (16, socket.SOCK_RAW)]:
    try:
        socket.socket(family, kind)
        sys.exit(f"a socket of family {family}")
    except OSError as error:
        assert error.errno == errno.ENOSYS, error
calls = dict(ptrace=101, unshare=272, setns=308, mount=165, bpf=321, keyctl=250, io_uring_setup=425, clone3=435,
             process_vm_readv=310, userfaultfd=323, perf_event_open=298, memfd_create=319, pidfd_getfd=438)
for name, number in calls.items():
    assert libc.syscall(number, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == errno.ENOSYS, name
assert libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) == -1 and ctypes.get_errno() == errno.ENOSYS, "clone"
print("confined")
"#;

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn git_opens_no_socket_and_makes_no_namespace() {
    for landlock in [has_landlock(), false] {
        let git = Git::new(GitLimits::default(), GitProcesses { runner: None, landlock }).unwrap();
        let (done, _dir) = shell(&git, &format!("python3 -c '{CALLS}'")).await;
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.code == Some(0) && said.contains("confined"), "{said}{}", done.stderr);
    }
}

#[tokio::test]
async fn git_works_on_a_kernel_without_landlock() {
    let git = Git::new(GitLimits::default(), GitProcesses { runner: None, landlock: false }).unwrap();
    let (done, _dir) = shell(&git, "cat OTHER/secret").await;
    assert_eq!(done.code, Some(0), "nothing confines it: {}", done.stderr);
}

#[tokio::test]
async fn each_process_is_limited_and_the_first_to_be_ended() {
    let git = git(GitLimits { memory: 64 << 20, ..GitLimits::default() });
    let dir = tempfile::TempDir::new().unwrap();
    let place = dir.path().join("own.git");
    init(&git, &place).await;
    let call = Call::within(&place);
    // It waits for its input.
    let mut running = git.spawn(&call, &["hash-object", "--stdin"]).await.unwrap();
    let (stdin, _stdout, _stderr) = running.pipes();
    let found = (0..500).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let processes: Vec<PathBuf> = all.map(|entry| entry.path()).collect();
        processes.into_iter().find(|process| {
            let words = std::fs::read(process.join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            words.contains(&*place.to_string_lossy())
                && words.contains("hash-object")
                && std::fs::read_to_string(process.join("oom_score_adj"))
                    .is_ok_and(|score| score.trim() == "1000")
        })
    });
    let process = found.expect("a git process that the kernel ends first");
    let limits = std::fs::read_to_string(process.join("limits")).unwrap();
    assert!(
        limits.lines().any(|line| line.starts_with("Max data size") && line.contains("67108864")),
        "{limits}"
    );
    drop(stdin);
    assert_eq!(running.wait().await, Ok(Some(0)));
}

#[tokio::test]
async fn a_runner_apart_does_the_same() {
    let dir = tempfile::TempDir::new().unwrap();
    let socket = dir.path().join("git.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let runner = GitRunner::new(has_landlock()).unwrap();
    std::thread::spawn(move || runner.serve(&listener));
    let git = Git::new(GitLimits::default(), GitProcesses { runner: Some(socket), landlock: false }).unwrap();
    let (done, _dir) = shell(&git, "echo done; exit 7").await;
    assert_eq!((done.code, &*done.stdout), (Some(7), &b"done\n"[..]), "{}", done.stderr);
    if has_landlock() {
        let (done, _dir) = shell(&git, "cat OTHER/secret").await;
        assert_ne!(done.code, Some(0), "the runner decides what git reaches");
    }
    let gone =
        Git::new(GitLimits::default(), GitProcesses { runner: Some("/nowhere".into()), landlock: true });
    let gone = gone.unwrap().run(Call::within(dir.path()), &["version"]).await;
    assert!(matches!(&gone, Err(GitError::Failed(why)) if why.contains("could not start git")), "{gone:?}");
}
