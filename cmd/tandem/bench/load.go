package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// shape is the form of a request on the wire.
type shape struct {
	size    int    // of the body, bytes
	escaped bool   // the prompt is like code: a line break or a quotation mark, escaped, every 40 bytes
	chunked bool   // as Envoy sends it, without a Content-Length
	prefill string // host:port of the prefill engine, for a sidecar; "" = local
	mode    string // for a picker; "" = none
	// readsBack says that the prefill engine is to read most of the prompt from the decode engine, for a sidecar.
	readsBack bool
}

// readBackPlan is a picker's plan for a request of size bytes, of whose prompt the decode engine has most.
func readBackPlan(size int) string {
	return pd.Plan{Verdict: pd.Remote, ID: "0123456789abcdef", Reason: pd.Uncached, SourceTokens: readBackTokens(size)}.String()
}

// promptLine is 40 bytes of text that tokenizers know.
const promptLine = "the quick brown fox jumps over a lazydog"

// body returns a completion request of the shape's size.
func (s shape) body() string {
	const head, tail = `{"model":"bench","max_tokens":8,"stream":false,"prompt":"`, `"}`
	line := promptLine
	if s.escaped {
		line = promptLine[:38] + `\n` + promptLine[:38] + `\"`
	}
	room := max(0, s.size-len(head)-len(tail))
	text := strings.Repeat(line, room/len(line))
	return head + text + strings.Repeat("x", room-len(text)) + tail
}

// envoyChunk is the size, in bytes, of the chunks in which Envoy streams a body.
const envoyChunk = 16 << 10

// request returns all bytes of a request.
func (s shape) request() []byte {
	head := "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
	if s.prefill != "" {
		head += "x-prefiller-host-port: " + s.prefill + "\r\n"
	}
	if s.readsBack {
		head += pd.HeaderSource + ": 127.0.0.1:1\r\n" + pd.HeaderPlan + ": " + readBackPlan(s.size) + "\r\n"
	}
	if s.mode != "" {
		head += pd.HeaderMode + ": " + s.mode + "\r\n"
	}
	body := s.body()
	if !s.chunked {
		return fmt.Appendf(nil, "%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
	}
	b := []byte(head + "Transfer-Encoding: chunked\r\n\r\n")
	for len(body) > 0 {
		n := min(len(body), envoyChunk)
		b, body = append(b, chunk(body[:n])...), body[n:]
	}
	return append(b, "0\r\n\r\n"...)
}

// exchanger performs one exchange of a measurement, repeatedly. close ends an exchange that is running.
type exchanger interface {
	exchange(ctx context.Context) error
	close()
}

// exchangeTimeout bounds one exchange, so that a program that never answers is an error.
const exchangeTimeout = 30 * time.Second

// conn is a client's connection to a server under test, on which one request is sent again and again.
type conn struct {
	net.Conn
	r       *bufio.Reader
	request []byte
}

func dial(ctx context.Context, addr string, request []byte) (*conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &conn{c, bufio.NewReaderSize(c, 16<<10), request}, nil
}

// lanesTo returns connections to a server.
func lanesTo(ctx context.Context, addr string, n int, request []byte) (lanes []exchanger, err error) {
	for range n {
		c, err := dial(ctx, addr, request)
		if err != nil {
			return lanes, fmt.Errorf("connecting: %w", err)
		}
		lanes = append(lanes, c)
	}
	return lanes, nil
}

func (c *conn) close() { _ = c.Close() }

// exchange sends the request and reads the whole answer, which must have status 200.
func (c *conn) exchange(context.Context) error {
	_, err := c.send()
	return err
}

// send is exchange, and returns the headers of the answer.
func (c *conn) send() (http.Header, error) {
	if err := c.SetDeadline(time.Now().Add(exchangeTimeout)); err != nil {
		return nil, err
	}
	if _, err := c.Write(c.request); err != nil {
		return nil, err
	}
	answer, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 300))
		return nil, fmt.Errorf("%s: %s", answer.Status, text)
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.Header, err
}

// inTurn performs several exchanges one after the other, such as the legs of a request.
type inTurn []exchanger

func (t inTurn) exchange(ctx context.Context) error {
	for _, leg := range t {
		if err := leg.exchange(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (t inTurn) close() { closeAll(t) }

// together performs several exchanges at once, and waits for all.
type together []exchanger

func (t together) exchange(ctx context.Context) error {
	failed := make(chan error, len(t))
	for _, leg := range t[1:] {
		go func() { failed <- leg.exchange(ctx) }()
	}
	err := t[0].exchange(ctx)
	for range t[1:] {
		err = errors.Join(err, <-failed)
	}
	return err
}

func (t together) close() { closeAll(t) }

func closeAll(lanes []exchanger) {
	for _, lane := range lanes {
		lane.close()
	}
}

// outcome collects the result of a load: the first error ends it.
type outcome struct {
	once sync.Once
	err  error
	stop context.CancelFunc
}

func (o *outcome) fail(err error) {
	o.once.Do(func() { o.err = err; o.stop() })
}

// closed runs several exchangers concurrently until the time is up (a closed loop): each performs one exchange after the
// other, and finishes its last one. It returns the number of exchanges.
func closed(ctx context.Context, lanes []exchanger, span time.Duration) (done int, err error) {
	defer context.AfterFunc(ctx, func() { closeAll(lanes) })()
	within, cancel := context.WithTimeout(ctx, span)
	defer cancel()
	o := outcome{stop: cancel}
	var total atomic.Int64
	var running sync.WaitGroup
	for _, lane := range lanes {
		running.Go(func() {
			for within.Err() == nil {
				if err := lane.exchange(ctx); err != nil {
					o.fail(err)
					return
				}
				total.Add(1)
			}
		})
	}
	running.Wait()
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return int(total.Load()), o.err
}

// paced starts exchanges at a rate, each at its time even if earlier ones have not finished (an open loop). It returns how
// long each took from the moment it was due, so a server that falls behind cannot hide it. An exchange for which no lane is
// free waits for one.
func paced(ctx context.Context, lanes []exchanger, rate float64, span time.Duration) (took []time.Duration, err error) {
	defer context.AfterFunc(ctx, func() { closeAll(lanes) })()
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	o := outcome{stop: cancel}
	free := make(chan exchanger, len(lanes))
	for _, lane := range lanes {
		free <- lane
	}
	took = make([]time.Duration, max(1, int(rate*span.Seconds())))
	began := time.Now()
	var running sync.WaitGroup
	for i := range took {
		due := began.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		sleepUntil(due)
		if within.Err() != nil {
			break
		}
		running.Go(func() {
			lane := <-free
			defer func() { free <- lane }()
			if err := lane.exchange(ctx); err != nil {
				o.fail(err)
			}
			took[i] = time.Since(due)
		})
	}
	running.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return took, o.err
}
