//! A fake GitHub: it refuses what the published description does not allow, answers with its examples, and
//! has real git behind it.

mod description;

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

pub use description::{Operation, operations};

/// What it does once, in place of an answer.
#[derive(Debug, Clone)]
pub enum Mood {
    Answer(u16, Vec<(&'static str, String)>, Value),
    /// Closes the connection.
    HangUp,
}

#[derive(Debug, Default)]
pub struct World {
    pub tokens: Vec<String>,
    pub moods: VecDeque<Mood>,
    /// The same, for requests of git.
    pub git_moods: VecDeque<Mood>,
    /// How many pushes are done and not answered.
    pub drop_push_answers: u32,
    pub flaws: Vec<String>,
    pub asked: Vec<String>,
    pub minted: u32,
    pub proofs: Vec<String>,
    /// What each may do with the repository: `admin`, `write`, `read` or `none`.
    pub permissions: HashMap<String, String>,
    /// Names of further repositories that the token sees.
    pub others: Vec<String>,
    /// Events of issues, newest first.
    pub events: Vec<Value>,
    pub statuses: Vec<Value>,
    pub comments: Vec<Value>,
    pub pulls: Vec<Value>,
    issues: Vec<Value>,
    reviews: Vec<Value>,
    lines: Vec<Value>,
}

#[derive(Debug)]
pub struct FakeGitHub {
    pub url: String,
    pub world: Arc<Mutex<World>>,
    pub dir: TempDir,
}

impl FakeGitHub {
    /// With one repository, `octo/app`, that has a commit on `main`.
    pub async fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let bare = dir.path().join("octo/app.git");
        std::fs::create_dir_all(&bare).unwrap();
        git(&bare, &["init", "--quiet", "--bare", "--initial-branch=main", "."]).await;
        git(&bare, &["config", "http.receivepack", "true"]).await;
        let work = dir.path().join("work");
        git(dir.path(), &["clone", "--quiet", bare.to_str().unwrap(), "work"]).await;
        git(&work, &["checkout", "--quiet", "-b", "main"]).await;
        std::fs::write(work.join("README"), "hello\n").unwrap();
        git(&work, &["add", "--all"]).await;
        git(&work, &["commit", "--quiet", "--message", "first"]).await;
        git(&work, &["push", "--quiet", "origin", "main"]).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/api/v3", listener.local_addr().unwrap());
        let world = Arc::new(Mutex::new(World { tokens: vec!["good-token".into()], ..World::default() }));
        let (shared, root) = (world.clone(), dir.path().to_path_buf());
        tokio::spawn(async move {
            let operations = Arc::new(operations());
            while let Ok((stream, _)) = listener.accept().await {
                let (world, root, operations) = (shared.clone(), root.clone(), operations.clone());
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        let (world, root, operations) = (world.clone(), root.clone(), operations.clone());
                        async move { answer(request, &world, &root, &operations).await }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { url, world, dir }
    }

    pub fn bare(&self) -> PathBuf {
        self.dir.path().join("octo/app.git")
    }

    pub fn mood(&self, mood: Mood) {
        self.world.lock().unwrap().moods.push_back(mood);
    }

    /// Somebody opens an issue on its pages; returns its number.
    pub fn open_issue(&self, author: &str, title: &str, body: &str, labels: &[&str]) -> i64 {
        let mut world = self.world.lock().unwrap();
        let all = operations();
        let mut issue =
            all.iter().find(|o| o.path.ends_with("/issues/{issue_number}")).unwrap().example.clone();
        issue.as_object_mut().unwrap().remove("pull_request");
        (issue["title"], issue["body"], issue["state"]) = (json!(title), json!(body), json!("open"));
        issue["user"]["login"] = json!(author);
        issue["labels"] = labels.iter().map(|name| json!({"id": 1, "name": name})).collect();
        issue["number"] = json!(world.issues.len() + 1);
        issue["html_url"] = json!(format!("{}/octo/app/issues/{}", self.web(), world.issues.len() + 1));
        world.issues.push(issue);
        i64::try_from(world.issues.len()).unwrap()
    }

    /// Something happens to an issue on its pages: `labeled` with a label, `assigned` with a login.
    pub fn issue_event(&self, number: i64, event: &str, actor: &str, about: &str) {
        let mut world = self.world.lock().unwrap();
        let id = world.events.len() + 100;
        let issue = world.issues[usize::try_from(number - 1).unwrap()].clone();
        let told = json!({
            "id": id, "event": event, "issue": issue, "actor": {"login": actor, "type": "User"},
            "label": {"name": about, "color": "fff"}, "assignee": {"login": about, "type": "User"},
            "created_at": jiff::Timestamp::now().to_string(),
        });
        world.events.insert(0, told);
    }

    /// Somebody comments on an issue or a pull request on its pages.
    pub fn say(&self, number: i64, author: &str, association: &str, body: &str) {
        let mut world = self.world.lock().unwrap();
        let id = world.comments.len() + 1000;
        let now = jiff::Timestamp::now().to_string();
        let told = json!({
            "id": id, "body": body, "user": {"login": author, "type": "User"}, "author_association": association,
            "issue_url": format!("{}/repos/octo/app/issues/{number}", self.url),
            "html_url": format!("{}/octo/app/issues/{number}#issuecomment-{id}", self.web()),
            "created_at": now, "updated_at": now,
        });
        world.comments.push(told);
    }

    /// The address of its pages and of git.
    pub fn web(&self) -> &str {
        self.url.trim_end_matches("/api/v3")
    }

    /// The same as [`Self::mood`], for requests of git.
    pub fn git_mood(&self, mood: Mood) {
        self.world.lock().unwrap().git_moods.push_back(mood);
    }

    pub fn asked(&self, what: &str) -> usize {
        self.world.lock().unwrap().asked.iter().filter(|asked| asked.starts_with(what)).count()
    }

    /// Checks that every request is one that GitHub describes.
    pub fn assert_no_flaws(&self) {
        let flaws = &self.world.lock().unwrap().flaws;
        assert!(flaws.is_empty(), "{flaws:#?}");
    }
}

type Reply = Response<Full<Bytes>>;

fn reply(status: u16, value: &Value) -> Reply {
    Response::builder().status(status).body(Full::new(value.to_string().into())).unwrap()
}

async fn answer(
    request: Request<Incoming>,
    world: &Mutex<World>,
    root: &Path,
    operations: &[Operation],
) -> Result<Reply, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let path = parts.uri.path().to_string();
    let header =
        |name: &str| parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_string();
    let Some(rest) = path.strip_prefix("/api/v3") else {
        return Ok(serve_git(&parts, &path, &body, world, root).await);
    };
    let method = parts.method.as_str();
    let mood = {
        let mut world = world.lock().unwrap();
        world.asked.push(format!("{method} {rest}"));
        world.moods.pop_front()
    };
    match mood {
        Some(Mood::Answer(status, headers, body)) => {
            let mut reply = reply(status, &body);
            for (name, value) in headers {
                reply.headers_mut().insert(name, value.parse().unwrap());
            }
            return Ok(reply);
        }
        Some(Mood::HangUp) => panic!("the fake hangs up, as it was told to"),
        None => {}
    }
    let shown = header("authorization").strip_prefix("Bearer ").unwrap_or_default().to_string();
    let found = operations.iter().find_map(|o| Some((o, o.matches(method, rest)?)));
    let Some((operation, named)) = found else {
        world.lock().unwrap().flaws.push(format!("{method} {rest}: not in the description"));
        return Ok(reply(404, &json!({"message": "Not Found"})));
    };
    let query: Vec<(String, String)> = parts
        .uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|p| !p.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name.to_string(), percent_encoding::percent_decode_str(value).decode_utf8_lossy().into_owned())
        })
        .collect();
    let given: Option<Value> = (!body.is_empty()).then(|| serde_json::from_slice(&body).unwrap());
    let mut flaws = operation.flaws(&query, given.as_ref());
    for name in ["user-agent", "accept", "x-github-api-version"] {
        if header(name).is_empty() {
            flaws.push(format!("no header `{name}`"));
        }
    }
    if !flaws.is_empty() {
        let flaws = flaws.join("; ");
        world.lock().unwrap().flaws.push(format!("{method} {rest}: {flaws}"));
        return Ok(reply(422, &json!({"message": flaws})));
    }
    let is_app = rest.starts_with("/app/");
    if is_app {
        world.lock().unwrap().proofs.push(shown);
    } else if !world.lock().unwrap().tokens.contains(&shown) {
        return Ok(reply(401, &json!({"message": "Bad credentials"})));
    }
    let made =
        act(operation, &named, &query, given.unwrap_or_default(), &header("accept"), world, root).await;
    let mut reply = match made {
        Ok(Value::String(text)) => Response::new(Full::new(text.into())),
        Ok(value) => reply(operation.status, &value),
        Err((status, message)) => reply(status, &json!({"message": message})),
    };
    if method == "GET" && reply.status() == StatusCode::OK {
        let body = reply.body().clone().collect().await.unwrap().to_bytes();
        let tag = format!(
            "\"{:x}\"",
            body.iter().fold(7u64, |sum, b| sum.wrapping_mul(31).wrapping_add((*b).into()))
        );
        if header("if-none-match") == tag {
            reply = Response::builder().status(304).body(Full::default()).unwrap();
        }
        reply.headers_mut().insert("etag", tag.parse().unwrap());
    }
    Ok(reply)
}

type Done = Result<Value, (u16, String)>;

async fn act(
    operation: &Operation,
    named: &[String],
    query: &[(String, String)],
    given: Value,
    accept: &str,
    world: &Mutex<World>,
    root: &Path,
) -> Done {
    let none = || (404, "Not Found".to_string());
    let example = || operation.example.clone();
    if operation.path.starts_with("/app/") {
        let mut world = world.lock().unwrap();
        if operation.method == "GET" {
            let mut told = example();
            told["permissions"] = json!({"contents": "write", "metadata": "read", "pull_requests": "read"});
            return Ok(told);
        }
        world.minted += 1;
        let token = format!("installation-{}", world.minted);
        world.tokens.push(token.clone());
        let mut told = example();
        told["token"] = json!(token);
        told["expires_at"] =
            json!((jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1)).to_string());
        return Ok(told);
    }
    if matches!(operation.path.as_str(), "/user/repos" | "/installation/repositories") {
        let told = example();
        let is_app = told.get("repositories").is_some();
        let one = if is_app { told["repositories"][0].clone() } else { told[0].clone() };
        let others = world.lock().unwrap().others.clone();
        let all = std::iter::once("octo/app".to_string()).chain(others).map(|name| {
            let mut shown = one.clone();
            shown["description"] = json!(format!("about {name}"));
            shown["full_name"] = json!(name);
            shown
        });
        let number = |name: &str, usual| {
            let found = query.iter().find(|(key, _)| key == name);
            found.and_then(|(_, value)| value.parse::<usize>().ok()).unwrap_or(usual)
        };
        let (size, page) = (number("per_page", 30), number("page", 1));
        let part: Vec<Value> = all.skip((page - 1) * size).take(size).collect();
        return Ok(if is_app {
            json!({"total_count": part.len(), "repositories": part})
        } else {
            part.into()
        });
    }
    if named[..2] != ["octo", "app"] {
        return Err(none());
    }
    let bare = root.join("octo/app.git");
    let tip = async |name: &str| {
        let told =
            git(&bare, &["for-each-ref", "--format=%(objectname)", &format!("refs/heads/{name}")]).await;
        if told.is_empty() { None } else { Some(told) }
    };
    let number = named.get(2).and_then(|n| n.parse::<i64>().ok());
    let place = number.map(|number| usize::try_from(number - 1).unwrap());
    let wanted = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let kind = operation.path.strip_prefix("/repos/{owner}/{repo}").unwrap();
    match (operation.method.as_str(), kind) {
        ("GET", "") => {
            let mut told = example();
            told["default_branch"] = json!("main");
            told["permissions"] = json!({"admin": false, "push": true, "pull": true});
            Ok(told)
        }
        ("GET", "/branches/{branch}") => {
            let name = percent_encoding::percent_decode_str(&named[2]).decode_utf8_lossy().into_owned();
            let mut told = example();
            told["name"] = json!(name);
            told["commit"]["sha"] = json!(tip(&name).await.ok_or_else(none)?);
            Ok(told)
        }
        ("GET", "/branches/{branch}/protection") if named[2] == "main" => Ok(example()),
        ("GET", "/branches") => {
            let told =
                git(&bare, &["for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", "refs/heads/"])
                    .await;
            let shown = |line: &str| {
                let (name, sha) = line.split_once(' ').unwrap();
                let mut told = example()[0].clone();
                told["name"] = json!(name);
                told["commit"]["sha"] = json!(sha);
                told
            };
            Ok(told.lines().map(shown).collect())
        }
        ("POST", "/pulls") => {
            let (head, base) = (given["head"].as_str().unwrap(), given["base"].as_str().unwrap());
            let (head_sha, base_sha) = (tip(head).await, tip(base).await);
            let (Some(head_sha), Some(base_sha)) = (head_sha, base_sha) else {
                return Err((422, "Validation Failed: head or base invalid".into()));
            };
            let mut world = world.lock().unwrap();
            let taken = |pull: &Value| pull["state"] == "open" && pull["head"]["ref"] == head;
            if world.pulls.iter().any(taken) {
                return Err((422, format!("A pull request already exists for octo:{head}.")));
            }
            let mut pull = example();
            pull["number"] = json!(world.pulls.len() + 1);
            pull["title"] = given["title"].clone();
            pull["body"] = given["body"].clone();
            pull["draft"] = given["draft"].clone();
            (pull["state"], pull["merged"], pull["merged_at"], pull["closed_at"]) =
                (json!("open"), json!(false), Value::Null, Value::Null);
            (pull["head"]["ref"], pull["head"]["sha"]) = (json!(head), json!(head_sha));
            (pull["base"]["ref"], pull["base"]["sha"]) = (json!(base), json!(base_sha));
            world.pulls.push(pull.clone());
            Ok(pull)
        }
        ("GET", "/pulls") => {
            let world = world.lock().unwrap();
            let head = wanted("head").map(|head| head.trim_start_matches("octo:").to_string());
            let state = wanted("state").unwrap_or_else(|| "open".into());
            let fits = |pull: &&Value| {
                (state == "all" || pull["state"] == state.as_str())
                    && head.as_ref().is_none_or(|head| pull["head"]["ref"] == head.as_str())
            };
            Ok(world.pulls.iter().rev().filter(fits).cloned().collect())
        }
        (_, "/pulls/{pull_number}") => {
            let pull = world.lock().unwrap().pulls.get(place.unwrap()).cloned().ok_or_else(none)?;
            if accept.ends_with(".diff") {
                let (base, head) =
                    (pull["base"]["sha"].as_str().unwrap(), pull["head"]["sha"].as_str().unwrap());
                return Ok(Value::String(git(&bare, &["diff", base, head]).await));
            }
            let mut world = world.lock().unwrap();
            let pull = &mut world.pulls[place.unwrap()];
            for (name, value) in given.as_object().into_iter().flatten() {
                pull[name] = value.clone();
            }
            Ok(pull.clone())
        }
        ("GET", "/pulls/{pull_number}/files") => Ok(example()),
        ("PUT", "/pulls/{pull_number}/merge") => {
            let pull = world.lock().unwrap().pulls.get(place.unwrap()).cloned().ok_or_else(none)?;
            if pull["state"] != "open" {
                return Err((405, "Pull Request is not mergeable".into()));
            }
            if given["sha"].as_str().is_some_and(|sha| pull["head"]["sha"] != sha) {
                return Err((409, "Head branch was modified. Review and try the merge again.".into()));
            }
            // Sets the base to the head: all that a test needs of a merge.
            let head = pull["head"]["sha"].as_str().unwrap();
            git(&bare, &["update-ref", "refs/heads/main", head]).await;
            let mut world = world.lock().unwrap();
            let pull = &mut world.pulls[place.unwrap()];
            (pull["state"], pull["merged"]) = (json!("closed"), json!(true));
            (pull["merged_at"], pull["merge_commit_sha"]) = (json!("2026-01-01T00:00:00Z"), json!(head));
            Ok(json!({"sha": head, "merged": true, "message": "Pull Request successfully merged"}))
        }
        ("POST", "/issues") => {
            let mut world = world.lock().unwrap();
            let mut issue = example();
            issue.as_object_mut().unwrap().remove("pull_request");
            (issue["title"], issue["body"]) = (given["title"].clone(), given["body"].clone());
            (issue["number"], issue["state"]) = (json!(world.issues.len() + 1), json!("open"));
            world.issues.push(issue.clone());
            Ok(issue)
        }
        ("GET", "/issues/events") => Ok(world.lock().unwrap().events.clone().into()),
        ("GET", "/issues/comments") => {
            let since = wanted("since").unwrap_or_default();
            let world = world.lock().unwrap();
            let is_new = |told: &&Value| told["updated_at"].as_str().is_some_and(|at| at >= since.as_str());
            Ok(world.comments.iter().filter(is_new).cloned().collect())
        }
        ("GET", "/pulls/comments") => Ok(json!([])),
        ("GET", "/collaborators/{username}/permission") => {
            let world = world.lock().unwrap();
            let permission = world.permissions.get(&named[2]).ok_or_else(none)?;
            let mut told = example();
            (told["permission"], told["role_name"]) = (json!(permission), json!(permission));
            Ok(told)
        }
        ("GET", "/issues") => Ok(world.lock().unwrap().issues.clone().into()),
        (_, "/issues/{issue_number}") => {
            let mut world = world.lock().unwrap();
            let issue = world.issues.get_mut(place.unwrap()).ok_or_else(none)?;
            for (name, value) in given.as_object().into_iter().flatten() {
                issue[name] = value.clone();
            }
            Ok(issue.clone())
        }
        ("POST", rest) if rest.ends_with("/comments") || rest.ends_with("/reviews") => {
            let mut world = world.lock().unwrap();
            let mut told = example();
            told["body"] = given["body"].clone();
            told["state"] = json!(match given["event"].as_str() {
                Some("APPROVE") => "APPROVED",
                Some("REQUEST_CHANGES") => "CHANGES_REQUESTED",
                _ => "COMMENTED",
            });
            if rest.ends_with("/reviews") {
                world.lines.extend(given["comments"].as_array().into_iter().flatten().cloned().map(
                    |mut line| {
                        line["id"] = json!(7);
                        line
                    },
                ));
                world.reviews.push(told.clone());
            } else {
                world.comments.push(told.clone());
            }
            Ok(told)
        }
        ("GET", "/issues/{issue_number}/comments") => Ok(world.lock().unwrap().comments.clone().into()),
        ("GET", "/pulls/{pull_number}/reviews") => Ok(world.lock().unwrap().reviews.clone().into()),
        ("GET", "/pulls/{pull_number}/comments") => Ok(world.lock().unwrap().lines.clone().into()),
        ("POST", "/statuses/{sha}") => {
            let mut told = example();
            for name in ["state", "context", "description"] {
                told[name] = given[name].clone();
            }
            told["sha"] = json!(named[2]);
            world.lock().unwrap().statuses.push(told.clone());
            Ok(told)
        }
        ("GET", "/commits/{ref}/status") => {
            let mut told = example();
            told["statuses"] = world.lock().unwrap().statuses.clone().into();
            Ok(told)
        }
        ("GET", "/commits/{ref}/check-runs") => Ok(example()),
        _ => Err(none()),
    }
}

/// Git's own server, for clients with a token.
async fn serve_git(
    parts: &http::request::Parts,
    path: &str,
    body: &Bytes,
    world: &Mutex<World>,
    root: &Path,
) -> Reply {
    let header = |name: &str| parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let mood = {
        let mut world = world.lock().unwrap();
        world.asked.push(format!("git {} {path}", parts.method));
        world.git_moods.pop_front()
    };
    match mood {
        Some(Mood::Answer(status, headers, body)) => {
            let mut reply = reply(status, &body);
            for (name, value) in headers {
                reply.headers_mut().insert(name, value.parse().unwrap());
            }
            return reply;
        }
        Some(Mood::HangUp) => panic!("the fake hangs up, as it was told to"),
        None => {}
    }
    let basic = header("authorization").strip_prefix("Basic ").unwrap_or_default();
    let basic = base64::engine::general_purpose::STANDARD.decode(basic).unwrap_or_default();
    let basic = String::from_utf8_lossy(&basic).into_owned();
    let token = basic.strip_prefix("x-access-token:").unwrap_or_default().to_string();
    if !world.lock().unwrap().tokens.contains(&token) {
        return Response::builder()
            .status(401)
            .header("www-authenticate", "Basic realm=\"GitHub\"")
            .body(Full::default())
            .unwrap();
    }
    let mut child = tokio::process::Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("PATH_INFO", path)
        .env("QUERY_STRING", parts.uri.query().unwrap_or_default())
        .env("REQUEST_METHOD", parts.method.as_str())
        .env("CONTENT_TYPE", header("content-type"))
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(body).await.unwrap();
    let out = child.wait_with_output().await.unwrap().stdout;
    let is_push = path.ends_with("/git-receive-pack") && parts.method == "POST";
    let drops = |world: &mut World| {
        let drop = is_push && world.drop_push_answers > 0;
        world.drop_push_answers -= u32::from(drop);
        drop
    };
    assert!(!drops(&mut world.lock().unwrap()), "the fake hangs up, as it was told to");
    let end = out.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let mut reply = Response::builder();
    for line in String::from_utf8_lossy(&out[..end]).lines() {
        let (name, value) = line.split_once(": ").unwrap();
        reply = match name {
            "Status" => reply.status(value.split(' ').next().unwrap().parse::<u16>().unwrap()),
            name => reply.header(name, value),
        };
    }
    reply.body(Full::new(Bytes::copy_from_slice(&out[end + 4..]))).unwrap()
}

/// Runs git as a fixed author; it must succeed.
pub async fn git(at: &Path, args: &[&str]) -> String {
    let output = tokio::process::Command::new("git")
        .current_dir(at)
        .args(args)
        .envs([
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_AUTHOR_NAME", "Ada"),
            ("GIT_AUTHOR_EMAIL", "ada@example.com"),
            ("GIT_COMMITTER_NAME", "Ada"),
            ("GIT_COMMITTER_EMAIL", "ada@example.com"),
        ])
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}
