//! Every tool, by subject.

mod bounds;
mod code;
mod commands;
mod compare;
mod files;
mod git;
mod sandboxes;
mod search;
mod tasks;

use std::sync::LazyLock;

use crate::tool::Tool;

static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
    [
        sandboxes::tools(),
        commands::tools(),
        code::tools(),
        files::tools(),
        search::tools(),
        git::tools(),
        compare::tools(),
        tasks::tools(),
    ]
    .into_iter()
    .flatten()
    .collect()
});

pub(crate) fn all() -> &'static [Tool] {
    &TOOLS
}

pub(crate) fn find(name: &str) -> Option<&'static Tool> {
    TOOLS.iter().find(|tool| tool.description.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_a_name_of_its_own_schemas_and_hints() {
        let names: Vec<&str> = all().iter().map(|tool| tool.description.name.as_ref()).collect();
        let wanted = [
            "create_sandbox",
            "list_sandboxes",
            "snapshot_sandbox",
            "fork_sandbox",
            "destroy_sandbox",
            "run_command",
            "start_process",
            "read_process",
            "run_code",
            "read_file",
            "write_file",
            "list_files",
            "search_files",
            "git_clone",
            "git_diff",
            "git_commit",
            "open_pull_request",
            "compare_forks",
            "create_task",
            "start_task",
            "list_tasks",
            "get_task",
        ];
        assert_eq!(names, wanted);
        for tool in all() {
            let described = &tool.description;
            assert!(described.description.as_ref().is_some_and(|text| text.len() > 20), "{}", described.name);
            let schema = serde_json::Value::Object((*described.input_schema).clone());
            assert_eq!(schema["additionalProperties"], false, "{} refuses unknown fields", described.name);
            for (field, shape) in schema["properties"].as_object().unwrap() {
                assert!(shape["description"].is_string(), "{}.{field} has a description", described.name);
            }
            assert_eq!(described.output_schema.as_ref().unwrap()["type"], "object", "{}", described.name);
            assert!(described.annotations.as_ref().unwrap().read_only_hint.is_some());
        }
    }
}
