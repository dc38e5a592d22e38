//! Imports a bundle: the header is parsed here, and only the pack after it goes to git, on its standard input.
//!
//! Git never gets the path of an uploaded file. `git fetch <file>` takes a file that is not a bundle for a
//! repository, and follows `gitdir: <path>` in it to any repository that the server can read. Objects are
//! checked in a separate directory and moved into the repository once they are complete, so a refused bundle
//! leaves nothing.

use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use coffer_core::forge::{BranchName, CommitId};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Bare;
use crate::ForgeError;
use crate::git::{Call, GitError, lacked_memory};

type Answer<T> = Result<T, ForgeError>;

const SIGNATURES: [&[u8]; 2] = [b"# v2 git bundle\n", b"# v3 git bundle\n"];
const LONGEST_HEADER: usize = 8 << 20;
const LONGEST_COMPLAINT: u64 = 4096;

/// The upload, counted.
pub(crate) struct Upload {
    body: BoxStream<'static, Result<Bytes, String>>,
    from: From,
    /// Read, but not yet used.
    pending: Bytes,
    length: u64,
    most: u64,
    silence: Duration,
}

/// Where a pack comes from, for the words of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Bundle,
    Remote,
}

impl From {
    /// It did not arrive whole.
    fn broken(self, why: &str) -> ForgeError {
        match self {
            Self::Bundle => ForgeError::invalid("bundle", why),
            Self::Remote => ForgeError::Unreachable { why: format!("its pack {why}"), retry_after: None },
        }
    }

    /// Git did not take it.
    fn refused(self, error: GitError) -> ForgeError {
        match (error, self) {
            (GitError::OutOfMemory(most), _) => ForgeError::pack_needs_memory(most),
            (error, Self::Bundle) => ForgeError::invalid("bundle", format!("cannot be read: {error}")),
            (error, Self::Remote) => {
                ForgeError::invalid("remote", format!("has commits that cannot be read: {error}"))
            }
        }
    }
}

impl Upload {
    pub(crate) fn new(body: BoxStream<'static, Result<Bytes, String>>, most: u64, silence: Duration) -> Self {
        Self { body, from: From::Bundle, pending: Bytes::new(), length: 0, most, silence }
    }

    /// A pack from another server, without a header.
    pub(crate) fn of_remote(
        body: BoxStream<'static, Result<Bytes, String>>,
        most: u64,
        silence: Duration,
    ) -> Self {
        Self { from: From::Remote, ..Self::new(body, most, silence) }
    }

    pub(crate) async fn next(&mut self) -> Answer<Option<Bytes>> {
        if !self.pending.is_empty() {
            return Ok(Some(std::mem::take(&mut self.pending)));
        }
        let piece = tokio::time::timeout(self.silence, self.body.next()).await;
        let piece = piece.map_err(|_| self.from.broken("did not arrive in time"))?;
        let piece = piece.transpose().map_err(|_| self.from.broken("ended too early"))?;
        self.length += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        if self.length > self.most {
            return Err(ForgeError::pack_too_large(self.most));
        }
        Ok(piece)
    }

    /// Parses the header; the pack follows.
    pub(crate) async fn header(&mut self) -> Answer<Header> {
        let (mut taken, mut searched) = (BytesMut::new(), 0);
        loop {
            let lines = check_signature(&taken)?;
            if let Some(end) = taken[searched..].windows(2).position(|pair| pair == b"\n\n") {
                let end = searched + end + 1;
                self.pending = taken.split_off(end + 1).freeze();
                return Header::parse(taken.get(lines..end).unwrap_or_default());
            }
            if taken.len() > LONGEST_HEADER {
                return Err(ForgeError::invalid("bundle", "has too many refs"));
            }
            searched = taken.len().saturating_sub(1);
            match self.next().await? {
                Some(piece) => taken.extend_from_slice(&piece),
                None => return Err(ForgeError::invalid("bundle", "ends within its header")),
            }
        }
    }

    /// Reads the rest, so that the client reads the answer.
    pub(crate) async fn drain(mut self) {
        while let Ok(Some(_)) = self.next().await {}
    }
}

/// Refuses data without a bundle's signature, and returns where its lines begin.
fn check_signature(bytes: &[u8]) -> Answer<usize> {
    let fits = |signature: &&&[u8]| bytes.starts_with(signature) || signature.starts_with(bytes);
    let why = "is not a git bundle; hint: `git bundle create all.bundle --all`";
    let found = SIGNATURES.iter().find(fits).ok_or_else(|| ForgeError::invalid("bundle", why))?;
    Ok(found.len())
}

/// The header of a bundle: its branches and tags.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) refs: Vec<(String, CommitId)>,
}

impl Header {
    /// Parses the lines between the signature and the pack.
    fn parse(lines: &[u8]) -> Answer<Self> {
        let bad = |why: &str| ForgeError::invalid("bundle", why);
        let lines = std::str::from_utf8(lines).map_err(|_| bad("has refs that are not UTF-8"))?;
        let mut header = Self::default();
        for line in lines.lines() {
            match line.as_bytes().first() {
                Some(b'@') if line == "@object-format=sha1" => {}
                Some(b'@') => return Err(bad("needs a capability that this server does not have")),
                Some(b'-') => {
                    return Err(bad("needs commits that it does not contain; create it with `--all`"));
                }
                _ => header.refs.extend(parse_ref(line)?),
            }
        }
        Ok(header)
    }
}

/// Parses a branch or tag; other refs, such as `HEAD`, are skipped.
fn parse_ref(line: &str) -> Answer<Option<(String, CommitId)>> {
    let bad = || ForgeError::invalid("bundle", "has a line without a ref");
    let (id, name) = line.split_once(' ').ok_or_else(bad)?;
    let id: CommitId = id.parse().map_err(|_| bad())?;
    let kinds = ["refs/heads/", "refs/tags/"];
    let Some(rest) = kinds.iter().find_map(|kind| name.strip_prefix(kind)) else { return Ok(None) };
    if id.as_str().len() != 40 || id.is_zero() {
        return Err(bad());
    }
    match rest.parse::<BranchName>() {
        Ok(_) => Ok(Some((name.to_string(), id))),
        Err(_) => Err(ForgeError::invalid("bundle", "has a ref whose name is not allowed")),
    }
}

impl Bare {
    /// Fills this empty repository; `quarantine` has the objects until they are known to be complete.
    pub(crate) async fn unbundle(&self, quarantine: &Path, upload: &mut Upload) -> Answer<()> {
        let header = upload.header().await?;
        if !header.refs.iter().any(|(name, _)| name.starts_with("refs/heads/")) {
            return Err(ForgeError::invalid("bundle", "has no branches"));
        }
        tokio::fs::create_dir(quarantine).await.map_err(ForgeError::disk)?;
        self.index_pack(quarantine, upload).await?;
        self.check_connected(quarantine, header.refs.iter().map(|(_, id)| id), upload.from).await?;
        self.adopt(quarantine).await?;
        let lines: String = header.refs.iter().map(|(name, id)| format!("create {name} {id}\n")).collect();
        let call = Call { stdin: lines.into(), ..Call::within(&self.directory) };
        let done = self.git.run(call, &["update-ref", "--stdin"]).await?;
        match done.code {
            Some(0) => Ok(()),
            _ if done.stderr.contains("reference already exists") => {
                Err(ForgeError::conflict("the repository is not empty; push to it instead"))
            }
            _ => Err(upload.from.refused(done.complaint())),
        }
    }

    /// Takes the pack of another server, which must have everything that `tips` need and is not here.
    pub(crate) async fn take_pack(
        &self,
        quarantine: &Path,
        upload: &mut Upload,
        tips: &[CommitId],
    ) -> Answer<()> {
        tokio::fs::create_dir(quarantine).await.map_err(ForgeError::disk)?;
        self.index_pack(quarantine, upload).await?;
        self.check_connected(quarantine, tips.iter(), upload.from).await?;
        self.adopt(quarantine).await
    }

    /// Writes the pack and its index to the quarantine, each object checked.
    async fn index_pack(&self, quarantine: &Path, upload: &mut Upload) -> Answer<()> {
        let strict = crate::serve::TOLERATED.map(|flaw| format!("{flaw}=warn")).join(",");
        let strict = format!("--strict={strict}");
        let mut args = vec!["index-pack", "--stdin", &strict];
        // A server leaves out what is here already.
        args.extend((upload.from == From::Remote).then_some("--fix-thin"));
        let from = upload.from;
        let call = self.call_in(quarantine);
        let mut running = self.git.spawn(&call, &args).await?;
        let (mut stdin, mut stdout, stderr) = running.pipes();
        let silence = upload.silence;
        let give = async move {
            while let Some(piece) = upload.next().await? {
                let given = tokio::time::timeout(silence, stdin.write_all(&piece)).await;
                // Git has seen enough, and says why.
                if given.map_err(|_| GitError::TimedOut)?.is_err() {
                    break;
                }
            }
            Ok::<_, ForgeError>(())
        };
        let (mut name, mut complaint) = (Vec::new(), Vec::new());
        let hear = async {
            let _ = (&mut stdout).take(LONGEST_COMPLAINT).read_to_end(&mut name).await;
        };
        let mut stderr = stderr.take(LONGEST_COMPLAINT);
        let listen = async {
            let _ = stderr.read_to_end(&mut complaint).await;
            // Git continues after warnings, however many there are.
            let _ = tokio::io::copy(stderr.get_mut(), &mut tokio::io::sink()).await;
        };
        let (given, (), ()) = tokio::join!(give, hear, listen);
        given?;
        let code = running.wait().await?;
        if code == Some(0) {
            return Ok(());
        }
        let complaint = String::from_utf8_lossy(&complaint);
        if code.is_none() || lacked_memory(&complaint) {
            return Err(from.refused(GitError::OutOfMemory(self.git.limits.memory)));
        }
        let line =
            complaint.lines().rfind(|line| line.starts_with("fatal: ")).unwrap_or("its pack is damaged");
        Err(from.refused(GitError::Failed(line.chars().filter(|c| !c.is_control()).take(300).collect())))
    }

    /// Whether everything that the refs need is in the pack.
    async fn check_connected(
        &self,
        quarantine: &Path,
        tips: impl Iterator<Item = &CommitId>,
        from: From,
    ) -> Answer<()> {
        let tips: String = tips.map(|id| format!("{id}\n")).collect();
        let time = Some(self.git.limits.transfer_time);
        let call = Call { stdin: tips.into(), time, ..self.call_in(quarantine) };
        let args = ["rev-list", "--objects", "--quiet", "--stdin", "--not", "--all"];
        let done = self.git.run(call, &args).await?;
        if done.code == Some(0) { Ok(()) } else { Err(from.refused(done.complaint())) }
    }

    /// A call that finds and stores objects in the quarantine.
    fn call_in<'a>(&'a self, quarantine: &'a Path) -> Call<'a> {
        let objects = quarantine.to_string_lossy().into_owned();
        let known = self.directory.join("objects").to_string_lossy().into_owned();
        let environment =
            vec![("GIT_OBJECT_DIRECTORY", objects), ("GIT_ALTERNATE_OBJECT_DIRECTORIES", known)];
        Call { environment, also: Some(quarantine), ..Call::within(&self.directory) }
    }

    /// Moves the pack into the repository, its index last: git looks for indexes.
    async fn adopt(&self, quarantine: &Path) -> Answer<()> {
        let (from, to) = (quarantine.join("pack"), self.directory.join("objects/pack"));
        tokio::fs::create_dir_all(&to).await.map_err(ForgeError::disk)?;
        let mut names = Vec::new();
        let mut entries = tokio::fs::read_dir(&from).await.map_err(ForgeError::disk)?;
        while let Some(entry) = entries.next_entry().await.map_err(ForgeError::disk)? {
            names.push(entry.file_name());
        }
        names.sort_by_key(|name| Path::new(name).extension().is_some_and(|end| end == "idx"));
        for name in names {
            tokio::fs::rename(from.join(&name), to.join(&name)).await.map_err(ForgeError::disk)?;
        }
        let directory = tokio::fs::File::open(&to).await.map_err(ForgeError::disk)?;
        directory.sync_all().await.map_err(ForgeError::disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "30ac85f7734efef6cd1cb08d1c4c1ac3615bb592";

    async fn read(pieces: &[&str]) -> Result<(Vec<String>, String), String> {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::from((*piece).to_string()))).collect();
        let body = futures_util::stream::iter(pieces).boxed();
        let mut upload = Upload::new(body, 1 << 20, Duration::from_secs(5));
        let header = upload.header().await.map_err(|error| error.to_string())?;
        let pack = String::from_utf8(upload.next().await.unwrap().unwrap_or_default().to_vec()).unwrap();
        Ok((header.refs.into_iter().map(|(name, _)| name).collect(), pack))
    }

    #[tokio::test]
    async fn a_header_is_read_to_its_end_however_it_is_cut() {
        let lines = ["refs/heads/main", "refs/tags/v1", "HEAD", "refs/pull/1/head"];
        let lines = lines.map(|name| format!("{ID} {name}\n")).concat();
        let text = format!("# v3 git bundle\n@object-format=sha1\n{lines}\nPACK");
        let names = vec!["refs/heads/main".to_string(), "refs/tags/v1".to_string()];
        for at in 0..text.len() - 4 {
            let (first, second) = text.split_at(at);
            assert_eq!(read(&[first, second]).await, Ok((names.clone(), "PACK".into())), "cut at {at}");
        }
        assert_eq!(read(&["# v2 git bundle\n\n"]).await, Ok((Vec::new(), String::new())));
        assert!(read(&[&text[..60]]).await.is_err(), "it ends early");
    }

    #[tokio::test]
    async fn what_is_no_bundle_is_refused() {
        for bad in [
            "gitdir: /somewhere/else.git".to_string(),
            "/proc/self/cwd".into(),
            "# v1 git bundle\n\n".into(),
            format!("# v2 git bundle\n-{ID} needed\n\n"),
            "# v2 git bundle\ngitdir: /somewhere\n\n".into(),
            "# v2 git bundle\n30ac refs/heads/main\n\n".into(),
            format!("# v2 git bundle\n{ID} refs/heads/../../x\n\n"),
            format!("# v2 git bundle\n{ID} refs/heads/a\tb\n\n"),
            format!("# v2 git bundle\n{} refs/heads/main\n\n", "0".repeat(40)),
            "# v3 git bundle\n@filter=blob:none\n\n".into(),
            "# v3 git bundle\n@object-format=sha256\n\n".into(),
        ] {
            assert!(read(&[&bad]).await.is_err(), "{bad:?}");
        }
    }
}
