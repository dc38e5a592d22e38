//! What a run logs says which run it is of.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use coffer_core::TaskId;
use coffer_testkit::TestDatabase;
use serde_json::json;

use crate::world::World;

#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The line that says so.
    fn line(&self, text: &str) -> String {
        let all = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        all.lines()
            .find(|line| line.contains(text))
            .map(String::from)
            .unwrap_or_else(|| panic!("no {text} in: {all}"))
    }
}

#[tokio::test]
async fn lines_of_a_run_name_it_and_its_task() {
    let log = Log::default();
    let to = log.clone();
    // For all tests: with one for this thread alone, a callsite that another thread meets first would stay disabled.
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || to.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let database = TestDatabase::sqlite();
    let world = World::new(&database).await;
    let runner = world.runner().await;
    world.outside.fail("push", 1);
    let task = TaskId::generate();
    let run = world.queue(json!({ "task": task })).await;
    world.until_over(run).await;
    runner.stop().await;
    let line = log.line(&format!("step push of run {run}"));
    let expected = format!("run{{run.id={run} task.id=\"{task}\"}}");
    assert!(line.contains(&expected), "{line}");
}
