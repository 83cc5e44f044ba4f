package badclient

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
)

// badClient is a client's end of a connection on which it breaks the rules. Where it is told to read, it is patient;
// where it writes, it ignores that the server no longer reads.
type badClient struct {
	*net.TCPConn
	reader *bufio.Reader
}

func newBadClient(t *testing.T, addr string) *badClient {
	t.Helper()
	c, err := dialBad(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func dialBad(addr string) (*badClient, error) {
	conn, err := net.DialTimeout("tcp", addr, harness.Patience)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(harness.Patience)); err != nil {
		return nil, err
	}
	return &badClient{conn.(*net.TCPConn), bufio.NewReader(conn)}, nil
}

// say writes as much as is taken.
func (c *badClient) say(format string, args ...any) *badClient {
	if len(args) > 0 {
		format = fmt.Sprintf(format, args...)
	}
	_, _ = io.WriteString(c.TCPConn, format)
	return c
}

// sayMuch writes n bytes, the same piece again and again, until the server takes no more.
func (c *badClient) sayMuch(piece string, n int) *badClient {
	chunk := strings.Repeat(piece, max(1, (64<<10)/len(piece)))
	for n > 0 {
		written, err := io.WriteString(c.TCPConn, chunk[:min(n, len(chunk))])
		if n -= written; err != nil {
			break
		}
	}
	return c
}

// badReply is what came back.
type badReply struct {
	status  int // 0: the connection was closed without an answer
	header  http.Header
	body    string
	dropped error
}

// hear reads one answer. A connection that ends instead is an answer too; one that does neither is none.
func (c *badClient) hear(t *testing.T) badReply {
	t.Helper()
	for {
		resp, err := http.ReadResponse(c.reader, nil)
		if err != nil {
			if errors.Is(err, errTimeout(err)) {
				t.Fatalf("neither an answer nor an end: %v", err)
			}
			return badReply{dropped: err}
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode == http.StatusContinue {
			continue
		}
		return badReply{resp.StatusCode, resp.Header, string(b), err}
	}
}

// errTimeout returns err itself if it is a time-out, else an error that nothing is.
func errTimeout(err error) error {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return err
	}
	return errors.New("no time-out")
}

// inShape reports whether the body is an error of the API.
func (r badReply) inShape() bool {
	var e struct {
		Error struct{ Message, Type, Code string }
	}
	return json.Unmarshal([]byte(r.body), &e) == nil && e.Error.Message != "" && e.Error.Type != "" && e.Error.Code != ""
}

// Types of HTTP/2 frames, and their flags (RFC 9113 §6).
const (
	h2Data, h2Headers, h2Reset, h2Settings, h2Continuation = 0x0, 0x1, 0x3, 0x4, 0x9

	h2EndStream, h2EndHeaders = 0x1, 0x4
)

const h2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// h2Frame appends a frame.
func h2Frame(b []byte, kind, flags byte, stream int, payload []byte) []byte {
	b = append(b, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags)
	b = binary.BigEndian.AppendUint32(b, uint32(stream))
	return append(b, payload...)
}

// h2Field appends a header field, literally, never indexed, and not Huffman-coded (RFC 7541 §6.2.3). Both are shorter than
// 127 bytes.
func h2Field(b []byte, name, value string) []byte {
	b = append(b, 0x10, byte(len(name)))
	b = append(b, name...)
	b = append(b, byte(len(value)))
	return append(b, value...)
}

// h2Head returns the header block of a generate call.
func h2Head() []byte {
	var b []byte
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/v1/completions"}, {":authority", "x"},
		{"content-type", "application/json"}} {
		b = h2Field(b, f[0], f[1])
	}
	return b
}

// h2Open begins a connection of HTTP/2 without asking (RFC 9113 §3.3).
func (c *badClient) h2Open(settings ...byte) *badClient {
	return c.say("%s", string(h2Frame([]byte(h2Preface), h2Settings, 0, 0, settings)))
}

// drain reads until the other side ends the connection, and gives the types of the frames that came.
func (c *badClient) drain() map[byte]int {
	kinds := map[byte]int{}
	var head [9]byte
	for {
		if _, err := io.ReadFull(c.reader, head[:]); err != nil {
			return kinds
		}
		kinds[head[3]]++
		size := int64(head[0])<<16 | int64(head[1])<<8 | int64(head[2])
		if _, err := io.CopyN(io.Discard, c.reader, size); err != nil {
			return kinds
		}
	}
}

// h1 returns a request of HTTP/1.1 with a body of a known length, or of none for "".
func h1(method, target, body string, header ...string) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n", method, target)
	for _, line := range header {
		b.WriteString(line + "\r\n")
	}
	if body != "" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	return b.String() + "\r\n" + body
}
