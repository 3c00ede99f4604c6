//! One bounded question to an admin side. Whoever asks limits the time; dropping the question closes the connection.

use holdfast_node::config::HttpAt;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use std::io;
use std::path::Path;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::task::AbortOnDropHandle;

/// What is said where a connection ends without an answer.
pub(super) const CLOSED: &str = "connection closed before the answer";

/// Headers of an HTTP answer.
const HEADERS_MAX: usize = 32 * 1024;

/// Sends a line to a socket and reads to the end of the answer, at most `max` bytes.
pub(super) async fn command(socket: &Path, line: &str, max: usize) -> Result<Vec<u8>, String> {
    let said = |e: io::Error| format!("{}: {}", socket.display(), in_words(&e));
    let mut stream = UnixStream::connect(socket).await.map_err(said)?;
    stream.write_all(format!("{line}\n").as_bytes()).await.map_err(said)?;
    // The master CLI would wait for more.
    stream.shutdown().await.map_err(said)?;
    let mut answer = Vec::new();
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    stream.take(limit).read_to_end(&mut answer).await.map_err(said)?;
    if answer.len() > max {
        return Err(format!("{}: answer longer than {max} bytes", socket.display()));
    }
    Ok(answer)
}

/// One request: status and body, at most `max` bytes.
pub(super) async fn http(at: &HttpAt, method: &str, path: &str, max: usize) -> Result<(u16, Vec<u8>), String> {
    let answer = match at {
        HttpAt::Tcp(address) => match TcpStream::connect(address).await {
            Ok(stream) => exchange(stream, &address.to_string(), method, path, max).await,
            Err(e) => Err(in_words(&e)),
        },
        HttpAt::Unix(socket) => match UnixStream::connect(socket).await {
            Ok(stream) => exchange(stream, "localhost", method, path, max).await,
            Err(e) => Err(in_words(&e)),
        },
    };
    answer.map_err(|e| format!("{at}: {e}"))
}

async fn exchange<S>(stream: S, host: &str, method: &str, path: &str, max: usize) -> Result<(u16, Vec<u8>), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let failed =
        |e: hyper::Error| if e.is_parse() || e.is_parse_too_large() { "not an HTTP answer" } else { CLOSED }.to_owned();
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEADERS_MAX)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    // Dies with this question, so that a timeout closes the socket too.
    let _driver = AbortOnDropHandle::new(tokio::spawn(connection));
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, host)
        .header(header::USER_AGENT, "holdfast")
        .header(header::CONNECTION, "close")
        .body(Empty::new())
        .map_err(|e| format!("can't ask: {e}"))?;
    let response = sender.send_request(request).await.map_err(failed)?;
    let status = response.status().as_u16();
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(failed)?;
        bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        if bytes.len() > max {
            return Err(format!("answer longer than {max} bytes"));
        }
    }
    Ok((status, bytes))
}

/// An error of a socket, without its number.
pub(super) fn in_words(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use tokio::net::{TcpListener, UnixListener};

    struct Socket(PathBuf);

    impl Drop for Socket {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// Answers each line with `answer`, and closes.
    fn serve(name: &str, answer: Vec<u8>) -> Socket {
        let path = std::env::temp_dir().join(format!("holdfast-ask-{}-{name}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).expect("a fresh socket");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut question = Vec::new();
                let _ = stream.read_to_end(&mut question).await;
                let _ = stream.write_all(&[question.as_slice(), answer.as_slice()].concat()).await;
            }
        });
        Socket(path)
    }

    #[tokio::test]
    async fn a_command_is_sent_as_a_line_and_the_whole_answer_is_read() {
        let socket = serve("whole", b"yes".to_vec());
        assert_eq!(command(&socket.0, "show info", 64).await, Ok(b"show info\nyes".to_vec()));
    }

    #[tokio::test]
    async fn an_answer_that_is_too_long_is_refused_and_an_absent_socket_is_named() {
        let socket = serve("long", vec![b'x'; 100]);
        let why = command(&socket.0, "q", 50).await.expect_err("too long");
        assert!(why.ends_with("answer longer than 50 bytes"), "{why}");
        let why = command(Path::new("/no/such.sock"), "q", 50).await.expect_err("absent");
        assert_eq!(why, "/no/such.sock: no such file or directory");
    }

    #[tokio::test]
    async fn an_http_answer_is_status_and_body_and_an_endless_one_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
        let at = HttpAt::Tcp(listener.local_addr().expect("bound"));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut question = [0; 1024];
                let n = stream.read(&mut question).await.unwrap_or(0);
                let _ = stream.write_all(b"HTTP/1.1 503 No\r\nconnection: close\r\n\r\nDRAINING").await;
                if question[..n].starts_with(b"GET /endless") {
                    while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
                }
            }
        });
        assert_eq!(http(&at, "GET", "/ready", 64).await, Ok((503, b"DRAINING".to_vec())));
        let why = http(&at, "GET", "/endless", 10_000).await.expect_err("endless");
        assert!(why.ends_with("answer longer than 10000 bytes"), "{why}");
    }
}
