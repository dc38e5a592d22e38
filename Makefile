.PHONY: build test run fmt
build:
	cargo build --release
test:
	cargo test
