//! The life of a sandbox's first process before it becomes agentd.

use std::convert::Infallible;
use std::ffi::CString;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Gid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets, CpuSet, UnshareFlags};

use crate::network::{self, Families, Listeners};

use super::filesystem::{self, Handed};
use super::request::SpawnRequest;
use super::setup_error::{Doing, SetupError};
use super::{kernel, packet, progress, seccomp};

/// Descriptors that the child inherits from the spawner.
pub(super) struct Inherited {
    /// Where agentd will listen.
    pub(super) listener: OwnedFd,
    /// Signals that the node has put this process under its limits.
    pub(super) gate: Option<OwnedFd>,
    /// Brings the mounts.
    pub(super) mounts: OwnedFd,
    /// Takes the sockets of its network and the reason if agentd never runs; closes when it does.
    pub(super) progress: OwnedFd,
}

/// What root inside may do to its own sandbox. Without `SYS_ADMIN` and `NET_ADMIN`: with them it could undo
/// the masks and the network policy. Without `NET_RAW`: the memory of raw sockets is charged to no cgroup.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

const OPEN_FILES: u64 = 65_536;

/// Becomes agentd, or reports why not and exits.
pub(super) fn run(request: &SpawnRequest, inherited: Inherited) -> ! {
    let progress = inherited.progress.try_clone();
    let error = match become_agentd(request, inherited) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    if let Ok(progress) = progress {
        let _ = packet::send(progress, error.to_string().as_bytes(), &[], SendFlags::empty());
    }
    // SAFETY: ends this process without running the exit handlers of the spawner it is a copy of.
    unsafe { libc::_exit(1) }
}

fn become_agentd(request: &SpawnRequest, inherited: Inherited) -> Result<Infallible, SetupError> {
    let Inherited { listener, gate, mounts, progress } = inherited;
    // A new session: a key typed at the node's terminal must not reach sandboxes.
    rustix::process::setsid().doing("start a session")?;
    kernel::reset_signals();
    let handed = receive_mounts(request, &mounts)?;
    drop(mounts);
    kernel::join_empty_session_keyring();

    // From the host's root to the sandbox's. Drop the groups first: later the process may not.
    rustix::thread::set_thread_groups(&[]).doing("drop the groups")?;
    rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)
        .doing("become the sandbox's group")?;
    rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).doing("become the sandbox's root")?;
    rustix::process::umask(Mode::empty());

    filesystem::build(request, handed)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    open_network(request.network, &progress)?;
    rustix::system::sethostname(request.hostname.as_bytes()).doing("set the host name")?;
    limit_resources()?;
    pin(&request.cpus)?;
    standard_streams()?;

    if let Some(gate) = gate {
        pass(&gate)?;
    }
    // Now, and not when cloned: the namespace's root is its creator's cgroup.
    // SAFETY: a new cgroup namespace shares nothing with threads, of which there is one.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWCGROUP) }.doing("create a cgroup namespace")?;

    cut_bounding_set()?;
    // While SYS_ADMIN is still held: afterwards it would take no_new_privs.
    seccomp::install().doing("install the system call filter")?;
    let sets = CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).doing("drop capabilities")?;

    execute(listener, progress)
}

/// Sets up its network namespace and sends the sockets in it to the node.
fn open_network(families: Option<Families>, progress: &OwnedFd) -> Result<(), SetupError> {
    network::set_up(families).doing("set up its network")?;
    let Some(families) = families else { return Ok(()) };
    let listeners = Listeners::open(families).doing("open the sockets of its network")?;
    packet::send(progress, progress::LISTENERS, &listeners.all(), SendFlags::empty())
        .doing("send the sockets of its network")
}

pub(super) fn receive_mounts(request: &SpawnRequest, from: &OwnedFd) -> Result<Handed, SetupError> {
    let packet = packet::receive(from, RecvFlags::empty()).doing("receive the mounts")?;
    let (_, descriptors) = packet.ok_or_else(|| SetupError::new("receive the mounts", Errno::PIPE))?;
    let (overlays, binds) = (request.overlays.len(), request.binds.len());
    if descriptors.len() != overlays + 1 + binds + request.volumes.len() {
        return Err(SetupError::new("receive all mounts", Errno::PROTO));
    }
    let mut descriptors = descriptors.into_iter();
    let overlays = descriptors.by_ref().take(overlays).collect();
    let agentd = descriptors.next().ok_or_else(|| SetupError::new("receive agentd", Errno::PROTO))?;
    let binds = descriptors.by_ref().take(binds).collect();
    Ok(Handed { overlays, agentd, binds, volumes: descriptors.collect() })
}

fn limit_resources() -> Result<(), SetupError> {
    let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
    let files = Some(hard.map_or(OPEN_FILES, |hard| hard.min(OPEN_FILES)));
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: files, maximum: files })
        .doing("limit open files")?;
    // A limit of one byte also keeps the kernel from starting the host's own handler of core dumps,
    // which would then read a hostile process's memory outside.
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(1), maximum: Some(1) })
        .doing("forbid core dumps")
}

pub(super) fn pin(cpus: &[usize]) -> Result<(), SetupError> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    rustix::thread::sched_setaffinity(None, &set).doing("choose processors")
}

/// Replaces the node's standard input and output.
pub(super) fn standard_streams() -> Result<(), SetupError> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .doing("open `/dev/null`")?;
    rustix::stdio::dup2_stdin(&null).doing("replace the input")?;
    rustix::stdio::dup2_stdout(&null).doing("replace the output")?;
    rustix::stdio::dup2_stderr(&null).doing("replace the error output")
}

/// Waits until the node opens the gate. A closed one means that it gave up.
pub(super) fn pass(gate: &OwnedFd) -> Result<(), SetupError> {
    let mut byte = [0];
    match rustix::io::retry_on_intr(|| rustix::io::read(gate, &mut byte)).doing("wait for the limits")? {
        0 => Err(SetupError::new("wait for the limits: the node closed the connection", Errno::CANCELED)),
        _ => Ok(()),
    }
}

fn cut_bounding_set() -> Result<(), SetupError> {
    for bit in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if KEPT.contains(capability) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Past the last capability of this kernel.
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(SetupError::new("reduce the capability bounding set", errno)),
        }
    }
    Ok(())
}

fn execute(listener: OwnedFd, progress: OwnedFd) -> Result<Infallible, SetupError> {
    // The socket to the node may sit on 3: it moves up first, and closes on exec in any case.
    let progress = rustix::io::fcntl_dupfd_cloexec(&progress, 10).doing("move the socket to the node")?;
    if listener.as_raw_fd() == 3 {
        rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty())
            .doing("keep the listener open across exec")?;
        // Stays open across exec, so it must not be closed here.
        let _ = listener.into_raw_fd();
    } else {
        // SAFETY: whatever 3 was, only this function runs from here on, and it does not use it.
        let mut third = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(3) };
        let moved = rustix::io::dup2(&listener, &mut third).doing("place the listener");
        let _ = third.into_raw_fd();
        moved?;
    }
    kernel::close_on_exec_from(4).doing("close the other descriptors")?;
    let text = |value: &str| CString::new(value).expect("our own words hold no zero byte");
    let program = text(&format!("/{}", filesystem::AGENTD));
    let environment = text("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    let Err(errno) = nix::unistd::execve(&program, &[text("agentd")], &[environment]);
    drop(progress);
    Err(SetupError::new("execute agentd", Errno::from_raw_os_error(errno as i32)))
}
