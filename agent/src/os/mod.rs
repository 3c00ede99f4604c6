//! Linux, one facility per file.

#![allow(unsafe_code)]
