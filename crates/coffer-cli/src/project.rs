//! `volume`, `secret`, `key`, `project`: what a project owns.

use clap::{Args, Subcommand};
use coffer_api_types::keys::{NewKeyRequest, RotateRequest};
use coffer_api_types::secrets::NewValue;
use coffer_api_types::volumes::{NewVolume, Volume};

use crate::context::{Context, pick};
use crate::failure::{Failure, Outcome};
use crate::{agents, login, pairs};

/// Volumes: directories that outlive sandboxes
#[derive(Debug, Args)]
pub struct Volumes {
    #[command(subcommand)]
    verb: VolumeVerb,
}

#[derive(Debug, Subcommand)]
enum VolumeVerb {
    /// List volumes
    Ls,
    /// Show a volume, its use and its sandboxes
    Show { volume: String },
    /// Create a volume
    Create {
        name: String,
        /// Its disk limit, such as 10GiB
        #[arg(long, value_name = "SIZE", value_parser = pairs::mebibytes)]
        size: Option<u64>,
    },
    /// Delete a volume with its content
    Rm { volume: String },
}

async fn volume_named(context: &Context, text: &str) -> Result<Volume, Failure> {
    let all = context.client.volumes().all().await?;
    let found = pick(
        &all,
        "volume",
        "volume ls",
        text,
        |volume| volume.id.as_str(),
        |volume| Some(volume.name.as_str()),
    )?;
    Ok(found.clone())
}

impl Volumes {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let (client, printer) = (&context.client, context.printer);
        match self.verb {
            VolumeVerb::Ls => {
                printer.list(&client.volumes().all().await?, &["id", "name", "size_mib", "created_at"])?
            }
            VolumeVerb::Show { volume } => {
                let volume = volume_named(context, &volume).await?;
                printer.show(&client.volume(&volume.id).await?)?;
            }
            VolumeVerb::Create { name, size } => {
                let made = client.create_volume(&NewVolume { name, size_mib: size }).await?;
                printer.done(&made.id, &made)?;
            }
            VolumeVerb::Rm { volume } => {
                let volume = volume_named(context, &volume).await?;
                client.delete_volume(&volume.id).await?;
                printer.done(&format!("deleted volume {}", volume.name), &volume)?;
            }
        }
        Ok(0)
    }
}

/// Secrets of the project
#[derive(Debug, Args)]
pub struct Secrets {
    #[command(subcommand)]
    verb: SecretVerb,
}

#[derive(Debug, Subcommand)]
enum SecretVerb {
    /// List secrets, without their values
    Ls,
    /// Store a secret; its value comes from stdin, or from a prompt
    Set {
        name: String,
        /// Only for headers to this host, never in a sandbox. May be repeated
        #[arg(long, value_name = "NAME")]
        host: Vec<String>,
    },
    /// Delete a secret
    Rm { name: String },
}

impl Secrets {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let (client, printer) = (&context.client, context.printer);
        match self.verb {
            SecretVerb::Ls => {
                printer.list(&client.secrets().all().await?, &["name", "version", "hosts", "updated_at"])?
            }
            SecretVerb::Set { name, host } => {
                let value = login::read_secret(&format!("Value of {name}"))?;
                let hosts = (!host.is_empty()).then_some(Some(host));
                let stored = client.set_secret(&name, &NewValue { value, hosts, plain_http: None }).await?;
                printer.done(&format!("stored {name}, version {}", stored.version), &stored)?;
            }
            SecretVerb::Rm { name } => {
                client.delete_secret(&name).await?;
                printer.done(&format!("deleted secret {name}"), &serde_json::json!({"name": name}))?;
            }
        }
        Ok(0)
    }
}

/// API keys of the project
#[derive(Debug, Args)]
pub struct Keys {
    #[command(subcommand)]
    verb: KeyVerb,
}

#[derive(Debug, Subcommand)]
enum KeyVerb {
    /// List keys, without their secrets
    Ls,
    /// Create a key and print it this once
    Create {
        /// To tell keys apart
        name: String,
        #[arg(long, value_name = "ROLE", value_parser = ["read", "write", "admin"])]
        role: Option<String>,
        /// Its holder: a program, or a person, whose approvals count
        #[arg(long, value_name = "KIND", value_parser = ["service", "person"])]
        kind: Option<String>,
        /// A key of this agent
        #[arg(long, value_name = "NAME")]
        agent: Option<String>,
        /// Expires after this time, such as 12h or 30d
        #[arg(long, value_name = "DURATION", value_parser = pairs::seconds)]
        expires: Option<i64>,
        /// For operators: a key of this project
        #[arg(long, value_name = "PROJECT")]
        project: Option<String>,
    },
    /// Create the successor of a key; the old one stays valid for a while
    Rotate {
        key: String,
        /// How long the old one stays valid, such as 1h
        #[arg(long, value_name = "DURATION", value_parser = pairs::seconds)]
        overlap: Option<i64>,
    },
    /// Revoke a key
    Rm { key: String },
}

impl Keys {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let (client, printer) = (&context.client, context.printer);
        let named = async |text: &str| {
            let all = client.keys().all().await?;
            pick(&all, "key", "key ls", text, |key| key.id.as_str(), |key| Some(key.name.as_str())).cloned()
        };
        match self.verb {
            KeyVerb::Ls => {
                let columns =
                    ["id", "name", "role", "kind", "prefix", "last_used_at", "expires_at", "revoked_at"];
                printer.list(&client.keys().all().await?, &columns)?;
            }
            KeyVerb::Create { name, role, kind, agent, expires, project } => {
                let new = NewKeyRequest {
                    name,
                    role: pairs::word(role)?,
                    kind: pairs::word(kind)?,
                    agent_id: agents::resolve_some(context, agent.as_deref()).await?,
                    expires_in_s: expires,
                };
                let made = match project {
                    Some(project) => {
                        client.create_project_key(&project_named(context, &project).await?, &new).await?
                    }
                    None => client.create_key(&new).await?,
                };
                printer.done(&made.key, &made)?;
            }
            KeyVerb::Rotate { key, overlap } => {
                let key = named(&key).await?;
                let made = client.rotate_key(&key.id, &RotateRequest { overlap_s: overlap }).await?;
                printer.done(&made.key, &made)?;
            }
            KeyVerb::Rm { key } => {
                let key = named(&key).await?;
                client.revoke_key(&key.id).await?;
                printer.done(&format!("revoked key {}", key.name), &key)?;
            }
        }
        Ok(0)
    }
}

/// For operators: a project's id, by its name or the beginning of its id.
pub(crate) async fn project_named(context: &Context, text: &str) -> Result<String, Failure> {
    if text.parse::<coffer_core::ProjectId>().is_ok() {
        return Ok(text.to_string());
    }
    let all = context.client.projects().all().await?;
    let found =
        pick(&all, "project", "project ls", text, |one| one.id.as_str(), |one| Some(one.name.as_str()))?;
    Ok(found.id.clone())
}

/// The project, or for operators all projects
#[derive(Debug, Args)]
pub struct Projects {
    #[command(subcommand)]
    verb: ProjectVerb,
}

#[derive(Debug, Subcommand)]
enum ProjectVerb {
    /// Show the key's own project
    Show,
    /// Rename the key's own project
    Rename { name: String },
    /// For operators: list projects
    Ls,
    /// For operators: create a project
    Create { name: String },
}

impl Projects {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let (client, printer) = (&context.client, context.printer);
        match self.verb {
            ProjectVerb::Show => printer.show(&client.project().await?)?,
            ProjectVerb::Rename { name } => {
                let project = client.rename_project(&name).await?;
                printer.done(&format!("renamed the project to {}", project.name), &project)?;
            }
            ProjectVerb::Ls => {
                printer.list(&client.projects().all().await?, &["id", "name", "created_at"])?
            }
            ProjectVerb::Create { name } => {
                let project = client.create_project(&name).await?;
                printer.done(&project.id, &project)?;
            }
        }
        Ok(0)
    }
}
