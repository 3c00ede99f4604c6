//! Ethernet frames that announce an address.
