//! Completes the OpenAPI description with the parts that many routes share.

use std::collections::BTreeSet;

use serde_json::Value;
use utoipa::openapi::schema::AdditionalProperties;
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, ResponseBuilder, Schema};

/// Adds the refusals that follow from a route's method, path, parameters and body. Routes describe only their
/// own refusals.
pub(super) fn complete(openapi: &mut OpenApi) {
    let refusal = |why: &str| {
        let shape = Ref::from_schema_name("Error");
        let content = ContentBuilder::new().schema(Some(shape)).build();
        ResponseBuilder::new().description(why).content("application/json", content).build()
    };
    for (path, item) in &mut openapi.paths.paths {
        let operations = [
            ("get", &mut item.get),
            ("head", &mut item.head),
            ("put", &mut item.put),
            ("post", &mut item.post),
            ("delete", &mut item.delete),
            ("patch", &mut item.patch),
        ];
        let place: Vec<&str> =
            path.split(['/', '{', '}', '*', '-', '.']).filter(|part| !part.is_empty()).collect();
        for (method, operation) in operations {
            let Some(operation) = operation else { continue };
            // Handler names are short and repeat; generated clients need unique ones.
            operation.operation_id = Some([&[method], &place[2..]].concat().join("_"));
            let is_public = operation.security.is_some();
            let takes_query = crate::query::parameters(operation).next().is_some();
            let body = operation.request_body.as_ref();
            let takes_body = body.is_some();
            let takes_json =
                matches!(body, Some(RefOr::T(body)) if body.content.contains_key("application/json"));
            let mut add = |status: &str, why: &str| {
                let responses = &mut operation.responses.responses;
                // An answer to HEAD has no body.
                let refusal = if method == "head" {
                    ResponseBuilder::new().description(why).build()
                } else {
                    refusal(why)
                };
                responses.entry(status.to_string()).or_insert_with(|| refusal.into());
            };
            add("400", "the request is malformed, or has a parameter that this route does not take");
            add("500", "the server failed; its log says why");
            if !is_public {
                add("401", "the key is missing or invalid");
                add("403", "the key may not do this");
                add("429", "too many requests, or over quota");
                add("503", "the database or the host of the sandboxes does not answer");
            }
            if path.contains('{') {
                add("404", "not found in this project");
            }
            if takes_body {
                add("408", "the body arrived too slowly");
            }
            if takes_json {
                add("413", "the body is too large");
            }
            if takes_body || takes_query {
                add("422", "a field or a parameter has an invalid value");
            }
            if path.starts_with("/api/v1/repositories/{repository}") {
                add("409", "the forge or the current state does not allow it");
                add("421", "another installation stores the repository");
            }
            if path.starts_with("/api/v1/sandboxes/{id}") {
                add("421", "another installation holds the sandbox");
            }
            for (status, response) in &mut operation.responses.responses {
                if let RefOr::T(response) = response
                    && response.description.is_empty()
                {
                    response.description = status_text(status);
                }
            }
        }
    }
    let sent = requested(openapi);
    let schemas = &mut openapi.components.get_or_insert_default().schemas;
    let parts: Vec<String> = schemas.values().flat_map(flattened).collect();
    for (name, schema) in schemas {
        let RefOr::T(Schema::Object(object)) = schema else { continue };
        if parts.contains(name) {
            // A shape that is flattened into another must allow the other's fields.
            object.additional_properties = None;
        } else if sent.contains(name)
            && !object.properties.is_empty()
            && object.additional_properties.is_none()
        {
            // Requests with fields that their shape lacks are refused: see `body`.
            object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
        }
    }
    // OpenAPI has no wildcard parts of paths.
    let paths = &mut openapi.paths.paths;
    *paths = std::mem::take(paths).into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
}

/// The names of shapes that are flattened into a shape.
fn flattened(schema: &RefOr<Schema>) -> Vec<String> {
    let RefOr::T(Schema::AllOf(all)) = schema else { return Vec::new() };
    let name = |item: &RefOr<Schema>| match item {
        RefOr::Ref(reference) => reference.ref_location.rsplit('/').next().map(str::to_string),
        RefOr::T(_) => None,
    };
    all.items.iter().filter_map(name).collect()
}

/// The names of shapes that requests are made of.
fn requested(openapi: &OpenApi) -> BTreeSet<String> {
    let json = serde_json::to_value(openapi).expect("a description is plain data");
    let operations = json["paths"].as_object().into_iter().flatten();
    let operations = operations.flat_map(|(_, item)| item.as_object().into_iter().flatten());
    let mut unread: Vec<&Value> = operations.map(|(_, operation)| &operation["requestBody"]).collect();
    let mut found = BTreeSet::new();
    while let Some(value) = unread.pop() {
        match value {
            Value::Array(items) => unread.extend(items),
            Value::Object(fields) => unread.extend(fields.values()),
            Value::String(text) => {
                if let Some(name) = text.strip_prefix("#/components/schemas/")
                    && found.insert(name.to_string())
                {
                    unread.push(&json["components"]["schemas"][name]);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    found
}

/// The name of a status.
fn status_text(status: &str) -> String {
    let known = status.parse().ok().and_then(|code| http::StatusCode::from_u16(code).ok());
    known.and_then(|status| status.canonical_reason()).unwrap_or("an answer").to_lowercase()
}
