//! Code in the code interpreters of sandboxes.

use coffer_api_types::code::{CodeContext, CodeRan, NewCode, NewCodeContext, NotebookQuery};
use coffer_api_types::exec::WatchQuery;
use http::Method;

use crate::api::FileContent;
use crate::client::{Client, at, encode, with_query};
use crate::code::CodeRun;
use crate::error::Error;
use crate::pages::Pages;

impl Client {
    /// Runs code and returns what it printed, showed and raised.
    pub async fn run_code(&self, id: &str, code: &NewCode) -> Result<CodeRan, Error> {
        self.call(Method::POST, &at(["sandboxes", id, "code"]), Some(code)).await
    }

    /// Runs code, with what it prints, shows and raises as it comes. Dropping it interrupts the code.
    pub async fn run_code_stream(&self, id: &str, code: &NewCode) -> Result<CodeRun, Error> {
        CodeRun::start(self, &at(["sandboxes", id, "code"]), code).await
    }

    /// The contexts of a sandbox. Wakes nothing.
    pub fn code_contexts(&self, id: &str) -> Pages<CodeContext> {
        self.list(at(["sandboxes", id, "code", "contexts"]), &WatchQuery { watch: Some(true) }).at_once()
    }

    pub async fn create_code_context(&self, id: &str, new: &NewCodeContext) -> Result<CodeContext, Error> {
        self.call(Method::POST, &at(["sandboxes", id, "code", "contexts"]), Some(new)).await
    }

    /// Gives a context a new kernel.
    pub async fn restart_code_context(&self, id: &str, context: &str) -> Result<(), Error> {
        let path = at(["sandboxes", id, "code", "contexts", context, "restart"]);
        self.tell(Method::POST, &path, None::<&()>).await
    }

    pub async fn remove_code_context(&self, id: &str, context: &str) -> Result<(), Error> {
        self.delete(&at(["sandboxes", id, "code", "contexts", context])).await
    }

    /// The code that ran in a sandbox, as a Jupyter notebook.
    pub async fn notebook(&self, id: &str, query: &NotebookQuery) -> Result<FileContent, Error> {
        self.content(&with_query(at(["sandboxes", id, "code", "notebook"]), &encode(query))).await
    }
}
