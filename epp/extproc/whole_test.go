package extproc

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tandem-serving/tandem/epp/extproc/client"
)

// pieces is a connection that keeps what is written to it, piece by piece.
type pieces struct {
	net.Conn        // nil
	came     []byte // what can be read
	mu       sync.Mutex
	all      [][]byte
	err      error // of writes
	closed   bool
}

func (p *pieces) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return 0, p.err
	}
	p.all = append(p.all, bytes.Clone(b))
	return len(b), nil
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.came) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.came)
	p.came = p.came[n:]
	return n, nil
}

func (p *pieces) Close() error {
	p.closed = true
	return nil
}

func (p *pieces) SetWriteDeadline(time.Time) error { return nil }

// text is all that was written.
func (p *pieces) text() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Concat(p.all...)
}

// wire writes what a gRPC server writes.
type wire struct {
	bytes.Buffer
	*http2.Framer
	block bytes.Buffer
	table *hpack.Encoder
}

func newWire() *wire {
	w := &wire{}
	w.Framer = http2.NewFramer(&w.Buffer, nil)
	w.table = hpack.NewEncoder(&w.block)
	return w
}

// headers begins a stream, or ends it. whole is how many messages belong together; "" marks nothing.
func (w *wire) headers(stream uint32, whole string, end bool) {
	w.block.Reset()
	fields := []hpack.HeaderField{{Name: ":status", Value: "200"}, {Name: "content-type", Value: "application/grpc"}}
	if whole != "" {
		fields = append(fields, hpack.HeaderField{Name: wholeHeader, Value: whole})
	}
	for _, f := range fields {
		must(w.table.WriteField(f))
	}
	must(w.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: w.block.Bytes(), EndStream: end, EndHeaders: true}))
}

// messages writes messages of so many bytes, in one frame.
func (w *wire) messages(stream uint32, sizes ...int) {
	var data []byte
	for _, n := range sizes {
		data = append(data, 0, 0, 0, byte(n>>8), byte(n))
		data = append(data, bytes.Repeat([]byte{'m'}, n)...)
	}
	must(w.WriteData(stream, false, data))
}

// piece gives what was written since the last call.
func (w *wire) piece() []byte {
	defer w.Reset()
	return bytes.Clone(w.Bytes())
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// TestWhole writes pieces and tells how many of them are out after each.
func TestWhole(t *testing.T) {
	for _, c := range []struct {
		name  string
		write []func(w *wire)
		out   []int // pieces that are out after each
	}{
		{"not marked", []func(w *wire){
			func(w *wire) { w.headers(1, "", false) },
			func(w *wire) { w.messages(1, 2) },
		}, []int{1, 2}},
		{"two messages", []func(w *wire){
			func(w *wire) { must(w.WriteSettings()) },
			func(w *wire) { w.headers(1, "2", false) },
			func(w *wire) { w.messages(1, 300) },
			func(w *wire) { w.messages(1, 2) },
			func(w *wire) { w.messages(1, 2) },
		}, []int{1, 1, 1, 4, 5}},
		{"all at once", []func(w *wire){
			func(w *wire) { w.headers(1, "2", false); w.messages(1, 300, 0) },
			func(w *wire) { w.headers(1, "", true) },
		}, []int{1, 2}},
		{"a message of several frames", []func(w *wire){
			func(w *wire) { w.headers(1, "1", false) },
			func(w *wire) { must(w.WriteData(1, false, []byte{0, 0, 0})) },
			func(w *wire) { must(w.WriteData(1, false, []byte{0, 3, 'a', 'b'})) },
			func(w *wire) { must(w.WriteData(1, false, []byte{'c'})) },
		}, []int{0, 0, 0, 4}},
		{"others wait behind it", []func(w *wire){
			func(w *wire) { w.headers(1, "1", false) },
			func(w *wire) { w.headers(3, "", false) },
			func(w *wire) { w.messages(3, 5) },
			func(w *wire) { w.messages(1, 5) },
		}, []int{0, 0, 0, 4}},
		{"others go out before it", []func(w *wire){
			func(w *wire) { w.headers(1, "1", false) },
			func(w *wire) { w.headers(3, "1", false) },
			func(w *wire) { w.messages(1, 5) },
			func(w *wire) { w.messages(3, 5) },
		}, []int{0, 0, 0, 4}}, // the first is whole, but lies around the beginning of the second
		{"a stream that ends before", []func(w *wire){
			func(w *wire) { w.headers(1, "2", false) },
			func(w *wire) { w.headers(1, "", true) },
		}, []int{0, 2}},
		{"a stream that is reset", []func(w *wire){
			func(w *wire) { w.headers(1, "2", false) },
			func(w *wire) { must(w.WriteRSTStream(1, http2.ErrCodeCancel)) },
		}, []int{0, 2}},
		{"data that end it", []func(w *wire){
			func(w *wire) { w.headers(1, "2", false) },
			func(w *wire) { must(w.WriteData(1, true, nil)) },
		}, []int{0, 2}},
		{"more than is held", []func(w *wire){
			func(w *wire) { w.headers(1, "2", false) },
			func(w *wire) { w.messages(1, maxHeld) },
			func(w *wire) { w.messages(1, 1) },
		}, []int{0, 2, 3}},
		{"a mark that is no number", []func(w *wire){
			func(w *wire) { w.headers(1, "two", false) },
		}, []int{1}},
		{"headers in two frames", []func(w *wire){
			func(w *wire) {
				w.headers(1, "1", false)
				whole := w.piece()
				must(w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: whole[9:12]}))
			},
			func(w *wire) { must(w.WriteContinuation(1, true, w.block.Bytes()[3:])) },
			func(w *wire) { w.messages(1, 1) },
		}, []int{1, 1, 3}}, // it does not know yet what begins
		{"padding is not understood", []func(w *wire){
			func(w *wire) { w.headers(1, "1", false) },
			func(w *wire) { must(w.WriteDataPadded(1, false, []byte{1}, []byte{0})) },
			func(w *wire) { w.headers(3, "1", false) },
		}, []int{0, 2, 3}},
		{"nor are headers that cannot be read", []func(w *wire){
			func(w *wire) { w.headers(1, "1", false) },
			func(w *wire) {
				must(w.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0xff, 0xff, 0xff}, EndHeaders: true}))
			},
		}, []int{0, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			under := &pieces{}
			conn := newWholeConn(under, holdTime)
			w := newWire()
			var sent []byte
			ends := []int{0}
			for i, write := range c.write {
				write(w)
				p := w.piece()
				if n, err := conn.Write(p); n != len(p) || err != nil {
					t.Fatalf("writing %d bytes: %d, %v", len(p), n, err)
				}
				sent = append(sent, p...)
				ends = append(ends, len(sent))
				if out := under.text(); !bytes.Equal(out, sent[:ends[c.out[i]]]) {
					t.Errorf("after %d pieces %d bytes are out of %d, want %d", i+1, len(out), len(sent), ends[c.out[i]])
				}
			}
			if err := conn.Close(); err != nil || !under.closed {
				t.Errorf("closed: %t, %v", under.closed, err)
			}
			if !bytes.Equal(under.text(), sent) {
				t.Error("what was held did not go out with the end of the connection")
			}
			if _, err := conn.Write(sent); !errors.Is(err, net.ErrClosed) {
				t.Errorf("writing to a closed connection: %v", err)
			}
		})
	}
}

// TestWholePart: of a piece, what lies before an answer that is not whole goes out.
func TestWholePart(t *testing.T) {
	under := &pieces{}
	conn := newWholeConn(under, holdTime)
	defer conn.Close()
	w := newWire()
	w.headers(1, "1", false)
	w.messages(1, 5)
	before := w.Len()
	w.headers(3, "1", false)
	p := w.piece()
	if _, err := conn.Write(p); err != nil {
		t.Fatal(err)
	}
	if out := under.text(); !bytes.Equal(out, p[:before]) {
		t.Errorf("%d bytes are out of %d, want %d", len(out), len(p), before)
	}
}

// TestWholeExpires: an answer of which no more comes holds others up for a moment only, and one that has just begun, none.
func TestWholeExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under := &pieces{}
		conn := newWholeConn(under, holdTime)
		defer conn.Close()
		w := newWire()
		begin := func(stream uint32) (length int) {
			w.headers(stream, "1", false)
			p := w.piece()
			if _, err := conn.Write(p); err != nil {
				t.Fatal(err)
			}
			return len(p)
		}
		mustBeOut := func(want int) {
			t.Helper()
			synctest.Wait()
			if n := len(under.text()); n != want {
				t.Errorf("%d bytes are out, want %d", n, want)
			}
		}
		out := 0
		for i := range 3 {
			length := begin(uint32(4*i + 1))
			time.Sleep(holdTime / 2)
			w.messages(uint32(4*i+1), 1)
			p := w.piece()
			if _, err := conn.Write(p); err != nil {
				t.Fatal(err)
			}
			out += length + len(p)
			mustBeOut(out)
			length = begin(uint32(4*i + 3)) // it will never be whole
			time.Sleep(holdTime - time.Nanosecond)
			mustBeOut(out)
			time.Sleep(time.Nanosecond)
			out += length
			mustBeOut(out)
		}
	})
}

// TestWholeResets: an answer that the gateway has given up holds nobody up, whether or not it had begun.
func TestWholeResets(t *testing.T) {
	for _, c := range []struct {
		name  string
		early bool
		cuts  int // bytes that one Read gets
	}{{"begun", false, 1 << 10}, {"begun, in pieces", false, 1}, {"not begun", true, 1 << 10}, {"not begun, in pieces", true, 7}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gateway := newWire()
				gateway.WriteString(http2.ClientPreface)
				must(gateway.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20}))
				must(gateway.WriteData(1, false, bytes.Repeat([]byte{byte(http2.FrameRSTStream)}, 100)))
				for other := range uint32(2 * resetsKnown) {
					must(gateway.WriteRSTStream(101+2*other, http2.ErrCodeCancel))
				}
				must(gateway.WriteRSTStream(3, http2.ErrCodeCancel))
				must(gateway.WriteData(1, true, nil))
				under := &pieces{came: gateway.piece()}
				conn := newWholeConn(under, time.Hour)
				defer conn.Close()
				w := newWire()
				w.headers(3, "1", false)
				w.headers(5, "", false)
				answers := w.piece()
				write := func() {
					if _, err := conn.Write(answers); err != nil {
						t.Fatal(err)
					}
				}
				if !c.early {
					write()
				}
				for p := make([]byte, c.cuts); ; {
					if _, err := conn.Read(p); err == io.EOF {
						break
					}
				}
				if c.early {
					write()
				}
				synctest.Wait()
				if out := under.text(); !bytes.Equal(out, answers) {
					t.Errorf("%d bytes are out of %d", len(out), len(answers))
				}
				w.headers(7, "1", false)
				if _, err := conn.Write(w.piece()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if out := under.text(); !bytes.Equal(out, answers) {
					t.Error("the next answer is not held")
				}
			})
		})
	}
}

// TestWholeTellsErrors: that what is held cannot be written is told by the next call.
func TestWholeTellsErrors(t *testing.T) {
	under := &pieces{err: os.ErrDeadlineExceeded}
	conn := newWholeConn(under, holdTime)
	defer conn.Close()
	s := newWire()
	s.headers(1, "1", false)
	if _, err := conn.Write(s.piece()); err != nil {
		t.Fatal(err)
	}
	s.messages(1, 1)
	for range 2 {
		if _, err := conn.Write(s.piece()); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the error is %v", err)
		}
	}
}

// discarded is a connection that takes everything.
type discarded struct{ net.Conn }

func (discarded) Write(p []byte) (int, error) { return len(p), nil }

// TestWholeAllocates: a connection that has seen an answer needs no memory for the next one.
func TestWholeAllocates(t *testing.T) {
	conn := newWholeConn(discarded{}, time.Hour)
	w := newWire()
	var answers [][][]byte
	for i := range 110 {
		stream := uint32(2*i + 1)
		var pieces [][]byte
		w.headers(stream, "2", false)
		pieces = append(pieces, w.piece())
		w.messages(stream, 300)
		pieces = append(pieces, w.piece())
		w.messages(stream, 1_000)
		w.headers(stream, "", true)
		answers = append(answers, append(pieces, w.piece()))
	}
	next := 0
	serve := func() {
		for _, p := range answers[next] {
			if _, err := conn.Write(p); err != nil {
				t.Fatal(err)
			}
		}
		next++
	}
	serve()
	if n := testing.AllocsPerRun(100, serve); n != 0 {
		t.Errorf("an answer allocates %v times", n)
	}
}

// FuzzWhole writes and reads anything in pieces of any size: all of it goes out, and comes in, in order.
func FuzzWhole(f *testing.F) {
	s := newWire()
	must(s.WriteSettings())
	s.headers(1, "2", false)
	s.messages(1, 200)
	s.headers(3, "1", false)
	s.messages(3, 3)
	s.messages(1, 7, 1)
	s.headers(1, "", true)
	must(s.WriteRSTStream(3, http2.ErrCodeNo))
	f.Add(s.piece(), []byte{1})
	f.Fuzz(func(t *testing.T, text, cuts []byte) {
		under := &pieces{came: bytes.Clone(text)}
		conn := newWholeConn(under, time.Hour)
		rest := text
		for i := 0; len(rest) > 0; i++ {
			n := len(rest)
			if len(cuts) > 0 {
				n = min(n, 1+int(cuts[i%len(cuts)]))
			}
			came := make([]byte, n)
			if k, err := conn.Read(came); k != n || err != nil || !bytes.Equal(came, rest[:n]) {
				t.Fatalf("read %d bytes of %d: %v", k, n, err)
			}
			if _, err := conn.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
			conn.mu.Lock()
			if out := under.text(); !bytes.Equal(append(out, conn.held...), text[:len(text)-len(rest)]) {
				t.Fatalf("%d bytes are out and %d are held of %d", len(out), len(conn.held), len(text)-len(rest))
			}
			conn.mu.Unlock()
		}
		conn.Close()
		if !bytes.Equal(under.text(), text) {
			t.Fatal("not all of it went out")
		}
	})
}

// recorder is a listener whose connections keep what is written to them.
type recorder struct {
	net.Listener
	mu    sync.Mutex
	conns []*recorded
}

type recorded struct {
	net.Conn
	pieces
}

func (r *recorder) Accept() (net.Conn, error) {
	conn, err := r.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &recorded{Conn: conn}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns = append(r.conns, c)
	return c, nil
}

func (c *recorded) Write(b []byte) (int, error) {
	if _, err := c.pieces.Write(b); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *recorded) Read(b []byte) (int, error)         { return c.Conn.Read(b) }
func (c *recorded) Close() error                       { return c.Conn.Close() }
func (c *recorded) SetWriteDeadline(t time.Time) error { return c.Conn.SetWriteDeadline(t) }

// TestAnswersLeaveWhole: whoever dies between two writes has begun no answer that another picker could give.
func TestAnswersLeaveWhole(t *testing.T) {
	const clients, requests = 8, 40
	patient := grpc.Creds(wholeCredentials{insecure.NewCredentials(), testTimeout})
	r := makeRig(t, newPool("10.0.0.1:8000"), []grpc.ServerOption{patient})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	listen := &recorder{Listener: listener}
	r.serveOn(t, listen)
	var work sync.WaitGroup
	for i := range clients {
		work.Go(func() {
			for n := range requests {
				s := r.open(quietT{t}, []client.Mark{client.MarkNone, client.MarkPicker}[i%2])
				defer s.cancel()
				switch n % 4 {
				case 0:
					s.send(get("/v1/models"))
				case 1: // it is refused
					s.send(chat(more), requestBody(ends, `{"model":`))
				case 2:
					s.send(chat(more), requestBody(more, prompted(3_000)), requestTrailers())
				case 3:
					s.send(chat(more), requestBody(more, prompted(100)), requestBody(ends, ""))
				}
				if _, err := s.finish(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	long := r.open(t, client.MarkPicker)
	long.send(chat(more), requestBody(ends, prompted(wholeBody)))
	if _, err := long.finish(); err != nil {
		t.Error(err)
	}
	r.gone(t)
	answers := 0
	listen.mu.Lock()
	defer listen.mu.Unlock()
	for _, c := range listen.conns {
		c.mu.Lock()
		answers += mustBeWhole(t, c.all)
		c.mu.Unlock()
	}
	if want := clients*requests + 1; answers != want {
		t.Errorf("%d answers are marked and whole of %d", answers, want)
	}
}

// prompted is a chat call of so many bytes.
func prompted(size int) string {
	const head, tail = `{"model":"m","messages":[{"role":"user","content":"`, `"}]}`
	return head + string(bytes.Repeat([]byte{'x'}, size-len(head)-len(tail))) + tail
}

// mustBeWhole counts the answers that are marked, and looks for those that do not end in the piece in which they begin, or
// have more messages than they say.
func mustBeWhole(t *testing.T, all [][]byte) (answers int) {
	t.Helper()
	var ends []int // of pieces
	for n, p := range all {
		ends = append(ends, len(p))
		if n > 0 {
			ends[n] += ends[n-1]
		}
	}
	type beginning struct {
		piece int
		answer
	}
	begun := map[uint32]*beginning{}
	table := hpack.NewDecoder(4096, nil)
	read := &counted{r: bytes.NewReader(slices.Concat(all...))}
	framer := http2.NewFramer(nil, read)
	for {
		frame, err := framer.ReadFrame()
		if err == io.EOF {
			return answers
		}
		must(err)
		piece, _ := slices.BinarySearch(ends, read.n) // the frame's last byte is in that one
		switch f := frame.(type) {
		case *http2.HeadersFrame:
			fields, err := table.DecodeFull(f.HeaderBlockFragment())
			must(err)
			for _, h := range fields {
				if h.Name == wholeHeader {
					n, err := strconv.Atoi(h.Value)
					must(err)
					begun[f.StreamID] = &beginning{piece, answer{messages: n}}
				}
			}
		case *http2.DataFrame:
			b := begun[f.StreamID]
			if b == nil {
				continue
			}
			if b.messages == 0 && len(f.Data()) > 0 {
				t.Errorf("stream %d has more messages than it says", f.StreamID)
				continue
			}
			b.take(f.Data())
			if b.messages > 0 {
				continue
			}
			answers++
			if piece != b.piece {
				t.Errorf("stream %d began in piece %d and was whole in piece %d", f.StreamID, b.piece, piece)
			}
		}
	}
}

// counted counts what is read.
type counted struct {
	r io.Reader
	n int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}
