//! Traffic to sandboxes; see `routing` for the seam to the rest of the server.
