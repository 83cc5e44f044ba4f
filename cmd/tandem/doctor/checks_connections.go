package doctor

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
	"github.com/tandem-serving/tandem/pd"
)

// lock is a port that speaks TLS, or should.
type lock struct {
	of, address, protocol string
	plaintext             bool // plaintext is allowed there too
}

func (l lock) String() string { return l.of }

// soon is the shortest acceptable remaining life of a certificate.
const soon = 14 * 24 * time.Hour

func checkTLS(ctx context.Context, f *fleet) finding {
	locks := f.locks()
	if len(locks) == 0 {
		return finding{verdict: unknown, seen: "no port with TLS is known", do: "name the picker's ext-proc port with --epp"}
	}
	return each(ctx, locks, f.how.Timeout, f.open)
}

func (f *fleet) locks() (locks []lock) {
	for _, p := range f.pickers {
		if p.extproc != "" {
			locks = append(locks, lock{of: p.name, address: p.extproc, protocol: "h2", plaintext: true})
		}
	}
	if strings.HasPrefix(f.parts.Proxy, "https://") {
		locks = append(locks, lock{of: "the proxy", address: hostPort(f.parts.Proxy)})
	}
	for _, t := range f.live() {
		if t.scheme == "https" && f.reach.dials() {
			locks = append(locks, lock{of: t.name, address: t.addr.String()})
		}
	}
	return locks
}

// open makes a TLS handshake and checks the certificate.
func (f *fleet) open(ctx context.Context, l lock) finding {
	config := secure(f.shown)
	if l.protocol != "" {
		config.NextProtos = []string{l.protocol}
	}
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", l.address)
	if err != nil {
		return notOpened(ctx, l, err)
	}
	defer conn.Close()
	state := conn.(*tls.Conn).ConnectionState()
	if state.NegotiatedProtocol != l.protocol {
		return l.otherProtocol()
	}
	return f.judge(state.PeerCertificates, l, time.Now())
}

func (l lock) otherProtocol() finding {
	return finding{verdict: fail, seen: fmt.Sprintf("%s speaks TLS, but not %s", l.address, l.protocol), do: "name the port that serves ext-proc"}
}

// notOpened explains a failed handshake: the port is closed, or speaks plaintext.
func notOpened(ctx context.Context, l lock, err error) finding {
	if strings.Contains(err.Error(), "no application protocol") { // crypto/tls gives its alerts no type
		return l.otherProtocol()
	}
	if refused(err) || isTimeout(err) {
		return finding{verdict: fail, seen: fmt.Sprintf("%s: %v", l.address, cause(err)), do: "start it, or correct the address"}
	}
	if l.plaintext && speaksH2(ctx, l.address) {
		found := finding{verdict: ok, seen: "plaintext, on this machine"}
		if !loopback(l.address) {
			found = finding{verdict: warn, seen: "plaintext", do: "serve ext-proc over TLS (--secure-serving, its default), and give the proxy TLS to it"}
		}
		return found
	}
	return finding{verdict: fail, seen: fmt.Sprintf("%s: shaking hands: %v", l.address, cause(err))}
}

// judge checks the dates of a certificate, and with --ca-file its signer and name.
func (f *fleet) judge(chain []*x509.Certificate, l lock, now time.Time) finding {
	leaf := chain[0]
	until := "valid until " + leaf.NotAfter.UTC().Format("2006-01-02 15:04 UTC")
	switch {
	case now.Before(leaf.NotBefore):
		return finding{verdict: fail, seen: "its certificate is not valid before " + leaf.NotBefore.UTC().Format("2006-01-02 15:04 UTC")}
	case now.After(leaf.NotAfter):
		return finding{verdict: fail, seen: "its certificate was " + until}
	case leaf.NotAfter.Sub(now) < soon:
		return finding{verdict: warn, seen: "its certificate is " + until}
	case f.roots == nil:
		return finding{verdict: ok, seen: until}
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	host, _, _ := net.SplitHostPort(l.address)
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: f.roots, Intermediates: between, CurrentTime: now}); err != nil {
		return finding{verdict: fail, seen: err.Error(), do: "get a certificate for this name from the authority of --ca-file"}
	}
	return finding{verdict: ok, seen: until + ", signed by the authority of --ca-file"}
}

// speaksH2 reports whether the server speaks HTTP/2 without TLS: such a server answers the preface with a SETTINGS frame.
func speaksH2(ctx context.Context, address string) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer conn.Close()
	if deadline, set := ctx.Deadline(); set {
		_ = conn.SetDeadline(deadline) // of a TCP connection that is open
	}
	const settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)); err != nil {
		return false
	}
	var frame [9]byte
	n, err := conn.Read(frame[:])
	return err == nil && n > 3 && frame[3] == 4
}

func isTimeout(err error) bool {
	timeout, is := errors.AsType[net.Error](err)
	return is && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

const (
	// skewWarn is a skew that shows only in traces.
	skewWarn = 2 * time.Second
	// skewFail is a skew that makes certificates and tokens of the cluster invalid.
	skewFail = 5 * time.Minute
)

// clock is a server and the skew of its clock.
type clock struct {
	of string
	skew
}

func (c clock) String() string { return c.of }

func checkClock(ctx context.Context, f *fleet) finding {
	var clocks []clock
	for _, t := range f.live() {
		clocks = append(clocks, clock{t.name, t.skew})
	}
	for _, p := range f.pickers {
		clocks = append(clocks, clock{p.name, p.skew})
	}
	known := clocks[:0]
	for _, c := range clocks {
		if c.known {
			known = append(known, c)
		}
	}
	if len(known) == 0 {
		return noEngine("sends a Date header")
	}
	found := each(ctx, known, f.how.Timeout, func(_ context.Context, c clock) finding {
		off := max(c.ahead.Abs()-c.slack, 0)
		switch {
		case off > skewFail:
			return finding{verdict: fail, seen: offText(c.skew)}
		case off > skewWarn:
			return finding{verdict: warn, seen: offText(c.skew)}
		}
		return finding{verdict: ok}
	})
	if found.verdict == ok {
		found.seen = fmt.Sprintf("%d within %v of this machine's", len(known), skewWarn)
	}
	return found
}

func offText(s skew) string {
	if s.ahead < 0 {
		return fmt.Sprintf("%v behind this machine's", -s.ahead.Round(time.Second))
	}
	return fmt.Sprintf("%v ahead of this machine's", s.ahead.Round(time.Second))
}

// legIdle is how long a sidecar keeps idle connections to prefill engines.
const legIdle = 4 * time.Second

// checkKeepAlive leaves connections idle and measures when servers close them.
func checkKeepAlive(ctx context.Context, f *fleet) finding {
	live := f.live()
	switch {
	case f.how.IdleWait == 0:
		return finding{verdict: unknown, seen: "not checked (--idle-wait)"}
	case !f.reach.dials():
		return finding{verdict: unknown, seen: "connections end at the API server", do: "run the doctor in a pod of the cluster, or with --via direct"}
	case len(live) == 0:
		return noEngine("answers")
	}
	return each(ctx, live, f.how.Timeout+f.how.IdleWait, func(ctx context.Context, t *target) finding {
		lasted, closed, err := f.idle(ctx, t)
		switch {
		case err != nil:
			return finding{verdict: unknown, seen: err.Error()}
		case !closed:
			return finding{verdict: ok, seen: fmt.Sprintf("still open after %v", f.how.IdleWait)}
		}
		seen := fmt.Sprintf("closes idle connections after %.1f s", lasted.Seconds())
		switch {
		case t.role.Has(pd.RoleDecode) && lasted < envoyconf.DefaultIdle:
			return finding{verdict: fail, seen: fmt.Sprintf("%s, and the proxy keeps them %v", seen, envoyconf.DefaultIdle)}
		case lasted < legIdle:
			return finding{verdict: fail, seen: fmt.Sprintf("%s, and sidecars keep them %v", seen, legIdle)}
		}
		return finding{verdict: ok, seen: seen + ", later than its clients do"}
	})
}

// idle sends one request on a connection of its own, and measures whether the server closes it within --idle-wait. The error says
// why that cannot be measured.
func (f *fleet) idle(ctx context.Context, t *target) (lasted time.Duration, closed bool, err error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", t.addr.String())
	if err != nil {
		return 0, false, cause(err)
	}
	defer conn.Close()
	if t.scheme == "https" {
		conn = tls.Client(conn, secure(f.shown))
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := fmt.Fprintf(conn, "GET /health HTTP/1.1\r\nHost: %s\r\n\r\n", t.addr); err != nil {
		return 0, false, cause(err)
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return 0, false, cause(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, false, cause(err)
	}
	if err := resp.Body.Close(); err != nil {
		return 0, false, cause(err)
	}
	if resp.Close {
		return 0, true, nil // the server keeps no connections
	}
	began, wait := time.Now(), f.how.IdleWait
	if err := conn.SetReadDeadline(began.Add(wait)); err != nil {
		return 0, false, err
	}
	_, err = in.ReadByte()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if ctx.Err() != nil {
			return 0, false, errors.New("it took too long to answer")
		}
		return wait, false, nil
	}
	return time.Since(began), true, nil
}
