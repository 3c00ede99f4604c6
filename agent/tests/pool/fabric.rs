//! A client, a balancer host and three backends in network namespaces of their own.

use crate::netns::{Namespace, PATIENCE, until};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) const VIP: &str = "10.9.1.10";
pub(crate) const VIP6: &str = "fd09:1::10";

/// TCP and UDP on ports 80 and 53 of a backend: each answers its number and whom it saw.
pub(crate) struct Backend {
    pub(crate) namespace: Namespace,
    pub(crate) number: u8,
    stop: Arc<AtomicBool>,
}

impl Backend {
    pub(crate) fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::from(([10, 9, 2, 10 + self.number], port))
    }

    pub(crate) fn start(&mut self) {
        self.stop = Arc::new(AtomicBool::new(false));
        let number = self.number;
        let (tcp, udp) = self.namespace.enter(|| {
            let tcp = TcpListener::bind("[::]:80").expect("free");
            let udp = UdpSocket::bind("[::]:53").expect("free");
            tcp.set_nonblocking(true).expect("set");
            udp.set_read_timeout(Some(Duration::from_millis(50))).expect("set");
            (tcp, udp)
        });
        let stop = Arc::clone(&self.stop);
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((_, from)) = udp.recv_from(&mut buffer) {
                    let _ = udp.send_to(&[number], from);
                }
            }
        });
        let stop = Arc::clone(&self.stop);
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match tcp.accept() {
                    Ok((stream, from)) => drop(std::thread::spawn(move || serve(stream, from, number))),
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// As many requests as come, one after the other.
fn serve(mut stream: TcpStream, from: SocketAddr, number: u8) {
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let mut buffer = [0; 1024];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        let _ = read;
        let body = format!("{number} {}\n", from.ip().to_canonical());
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// A client on the front segment, the host, and backends behind it.
pub(crate) struct Fabric {
    pub(crate) client: Namespace,
    pub(crate) host: Namespace,
    pub(crate) backends: Vec<Backend>,
}

impl Fabric {
    pub(crate) fn new() -> Self {
        let (client, host) = (Namespace::new("c"), Namespace::new("h"));
        host.set("ipv4/ip_forward", "1");
        host.set("ipv6/conf/all/forwarding", "1");
        host.ip(&format!("link add front type veth peer name eth0 netns {}", client.name));
        host.ip("link add back type bridge");
        for device in ["front", "back"] {
            host.ip(&format!("link set {device} up"));
            // Or a backend that comes to a service is told of a shorter way, past us.
            host.set(&format!("ipv4/conf/{device}/send_redirects"), "0");
        }
        host.set("ipv4/conf/all/send_redirects", "0");
        client.ip("link set eth0 up");
        client.ip("address add 10.9.1.2/24 dev eth0");
        client.ip("address add fd09:1::2/64 dev eth0 nodad");
        host.ip("address add 10.9.1.1/24 dev front");
        host.ip("address add fd09:1::1/64 dev front nodad");
        host.ip("address add 10.9.2.1/24 dev back");
        host.ip("address add fd09:2::1/64 dev back nodad");
        client.ip("route add default via 10.9.1.1");
        client.ip("route add default via fd09:1::1");
        let backend = |number: u8| {
            let namespace = Namespace::new(&format!("b{number}"));
            host.ip(&format!("link add b{number} type veth peer name eth0 netns {}", namespace.name));
            host.ip(&format!("link set b{number} up master back"));
            // Where bridges filter too, one that is sent to itself would not leave by the port it came from.
            host.ip(&format!("link set b{number} type bridge_slave hairpin on"));
            namespace.ip("link set eth0 up");
            namespace.ip(&format!("address add 10.9.2.{}/24 dev eth0", 10 + number));
            namespace.ip(&format!("address add fd09:2::1{number}/64 dev eth0 nodad"));
            namespace.ip("route add default via 10.9.2.1");
            namespace.ip("route add default via fd09:2::1");
            let mut backend = Backend { namespace, number, stop: Arc::default() };
            backend.start();
            backend
        };
        let backends: Vec<Backend> = (1..=3).map(backend).collect();
        for backend in &backends {
            let address = backend.address(80);
            until("the backend is reached", || host.enter(|| TcpStream::connect(address).ok()));
        }
        Self { client, host, backends }
    }

    /// The VIPs, where no agent holds them.
    pub(crate) fn hold(&self) {
        self.host.ip(&format!("address add {VIP}/32 dev front"));
        self.host.ip(&format!("address add {VIP6}/128 dev front nodad"));
    }

    /// Who answers a datagram from each of these ports of the client; 0: nobody.
    pub(crate) fn ask_by_udp(&self, ports: std::ops::Range<u16>) -> Vec<u8> {
        self.client.enter(|| {
            let ask = |port: u16| {
                let socket = UdpSocket::bind(("10.9.1.2", port)).expect("free");
                socket.set_read_timeout(Some(Duration::from_secs(2))).expect("set");
                let mut answer = [0];
                // A loaded machine may lose one.
                for _ in 0..3 {
                    let sent = socket.send_to(b"?", (VIP, 53)).and_then(|_| socket.recv(&mut answer));
                    if sent.is_ok() {
                        return answer[0];
                    }
                }
                0
            };
            ports.map(ask).collect()
        })
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.backends.iter().for_each(Backend::stop);
    }
}

/// One request on a connection: which backend, and whom it saw.
pub(crate) fn ask(stream: &mut TcpStream) -> Option<(u8, IpAddr)> {
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
    let mut text = String::new();
    let mut buffer = [0; 512];
    while !text.ends_with('\n') || !text.contains("\r\n\r\n") {
        let read = stream.read(&mut buffer).ok().filter(|read| *read > 0)?;
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    let (number, seen) = text.rsplit_once("\r\n\r\n")?.1.trim().split_once(' ')?;
    Some((number.parse().ok()?, seen.parse().ok()?))
}

pub(crate) fn connect(address: &str) -> Option<TcpStream> {
    let address: SocketAddr = address.parse().expect("an address");
    TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()
}
