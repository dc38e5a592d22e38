//! Templates and their builds.

use coffer_api_types::templates::{
    NewTemplateBuild, RequestedTemplateBuild, Template, TemplateBuild, TemplateBuildQuery, TemplateFiles,
    TemplateQuery,
};
use http::Method;

use crate::api::Upload;
use crate::client::{Client, at, read};
use crate::error::Error;
use crate::follow::Follow;
use crate::pages::Pages;

impl Client {
    /// Templates that sandboxes can start from: the server's and the project's.
    pub fn templates(&self, query: &TemplateQuery) -> Pages<Template> {
        self.list(at(["templates"]), query)
    }

    /// By id or name.
    pub async fn template(&self, name: &str) -> Result<Template, Error> {
        self.get(&at(["templates", name])).await
    }

    pub async fn delete_template(&self, name: &str) -> Result<(), Error> {
        self.delete(&at(["templates", name])).await
    }

    /// Starts a build.
    pub async fn build_template(&self, new: &NewTemplateBuild) -> Result<RequestedTemplateBuild, Error> {
        self.call(Method::POST, &at(["templates"]), Some(new)).await
    }

    /// Newest first.
    pub fn template_builds(&self, query: &TemplateBuildQuery) -> Pages<TemplateBuild> {
        self.list(at(["template-builds"]), query)
    }

    pub async fn template_build(&self, id: &str) -> Result<TemplateBuild, Error> {
        self.get(&at(["template-builds", id])).await
    }

    /// A build's log as events `line`, then `end` with the build.
    pub fn follow_template_build(&self, id: &str) -> Follow {
        Follow::new(self.clone(), at(["template-builds", id, "stream"]))
    }

    pub async fn cancel_template_build(&self, id: &str) -> Result<(), Error> {
        self.tell(Method::POST, &at(["template-builds", id, "cancel"]), None::<&()>).await
    }

    /// Uploads a build context or an archive of an image; its hash names it in builds.
    pub async fn upload_template_files(&self, content: Upload) -> Result<TemplateFiles, Error> {
        read(self.upload(Method::POST, &at(["template-files"]), content).await?).await
    }
}
