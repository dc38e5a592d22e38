//! Generates the envd messages from `proto/` when the feature `envd` asks for them.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=proto");
    #[cfg(feature = "envd")]
    envd()?;
    Ok(())
}

/// Messages with their binary form by prost and their JSON form by pbjson, without `protoc`.
#[cfg(feature = "envd")]
fn envd() -> Result<(), Box<dyn std::error::Error>> {
    use prost::Message as _;

    let descriptors = protox::compile(["process.proto", "filesystem.proto"], ["proto"])?;
    let encoded = descriptors.encode_to_vec();
    prost_build::Config::new()
        .bytes(["."])
        .extern_path(".google.protobuf.Timestamp", "crate::envd::Timestamp")
        .compile_well_known_types()
        .compile_fds(descriptors)?;
    pbjson_build::Builder::new()
        .register_descriptors(&encoded)?
        .extern_path(".google.protobuf.Timestamp", "crate::envd::Timestamp")
        .ignore_unknown_fields()
        .build(&[".process", ".filesystem"])?;
    Ok(())
}
