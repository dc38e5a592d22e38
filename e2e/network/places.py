"""Where everything is in the world of these tests: what a sandbox may reach, and what it must not."""

HOST, HOST_V6 = "93.184.100.2", "2606:2800:100::2"  # the machine that runs coffer, as the world sees it
GATE, GATE_V6 = "93.184.100.1", "2606:2800:100::1"  # the world's end of its only link; its nameserver too

SITE, SITE_V6 = "93.184.216.34", "2606:2800:220:1::34"
OTHER = "93.184.216.35"
# Speaks TLS with a certificate of an authority that `coffer up` was told to believe.
API, API_NAME = "93.184.216.36", "api.test"

# The host's link leads to these too, so whoever dials them gets there and is seen.
PRIVATE = "10.9.9.9"
METADATA = "169.254.169.254"
INNER = [PRIVATE, "172.16.9.9", "192.168.9.9", METADATA, "100.64.9.9", "198.18.9.9", "fd00::9:9"]

# A package mirror of the operator's, at a private address that another site shares. They are not among the
# inner addresses, because a sandbox may get there by the mirror's name.
MIRROR, MIRROR_NAME, MIRROR_PORTS = "10.9.8.8", "mirror.test", (80, 443)
# Mirrors that a resolver leads astray.
STRAYS = {"stray-metadata.test": METADATA, "stray-host.test": HOST, "stray-loop.test": "127.0.0.1"}

NAMES = {
    "example.com": [SITE, SITE_V6],
    "www.example.com": [SITE],
    "deep.down.example.com": [SITE],
    "other.test": [OTHER],
    API_NAME: [API],
    "inner.test": [PRIVATE],
    "metadata.test": [METADATA],
    "host.test": [HOST],
    "loop.test": ["127.0.0.1", "::1"],
    "mapped.test": [f"::ffff:{PRIVATE}"],
    "nat64.test": ["64:ff9b::a09:909"],
    "mixed.test": [PRIVATE, SITE],
    MIRROR_NAME: [MIRROR],
    "neighbour.test": [MIRROR],
    **{name: [address] for name, address in STRAYS.items()},
}
# Leads to the site when first asked for, and inside from then on.
REBINDING = "rebind.test"
