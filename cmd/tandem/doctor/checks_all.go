package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp/extproc"
	"github.com/tandem-serving/tandem/pd"
)

// lock is a port where TLS is, or should be, spoken.
type lock struct {
	of, address, protocol string
	plaintext             bool // may be spoken there too
}

func (l lock) String() string { return l.of }

// soon is how long a certificate should still be valid.
const soon = 14 * 24 * time.Hour

func checkTLS(ctx context.Context, f *fleet) finding {
	locks := f.locks()
	if len(locks) == 0 {
		return finding{verdict: unknown, seen: "no port is known where TLS is spoken", do: "name the picker's with --epp"}
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

// open shakes hands and looks at the certificate.
func (f *fleet) open(ctx context.Context, l lock) finding {
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true} //nolint:gosec // verified below, to tell why not
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

// notOpened tells plaintext from nothing.
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

// judge looks at dates, and at signer and name where it is known who should have signed.
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
		return finding{verdict: fail, seen: err.Error(), do: "have the certificate signed by the authority of --ca-file, for this name"}
	}
	return finding{verdict: ok, seen: until + ", signed as it should be"}
}

// speaksH2 tells whether HTTP/2 is spoken without TLS: a server answers the preface with a SETTINGS frame.
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
	// skewWarn is what nobody notices but in traces.
	skewWarn = 2 * time.Second
	// skewFail makes certificates and tokens of the cluster invalid.
	skewFail = 5 * time.Minute
)

// clock is somebody's time.
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
		return nobody("dates its answers")
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

// checkKeepAlive leaves a connection idle to see who closes it.
func checkKeepAlive(ctx context.Context, f *fleet) finding {
	live := f.live()
	switch {
	case f.how.IdleWait == 0:
		return finding{verdict: unknown, seen: "not looked at (--idle-wait)"}
	case !f.reach.dials():
		return finding{verdict: unknown, seen: "the connections are the API server's", do: "run the doctor in a pod of the cluster, or with --via direct"}
	case len(live) == 0:
		return nobody("answers")
	}
	return each(ctx, live, f.how.Timeout+f.how.IdleWait, func(ctx context.Context, t *target) finding {
		lasted, closed, err := idle(ctx, t, f.how.IdleWait)
		switch {
		case err != nil:
			return finding{verdict: unknown, seen: err.Error()}
		case !closed:
			return finding{verdict: ok, seen: fmt.Sprintf("still open after %v", f.how.IdleWait)}
		}
		seen := fmt.Sprintf("closes idle connections after %.1f s", lasted.Seconds())
		switch {
		case t.role.Has(pd.RoleDecode) && lasted < extproc.DefaultIdle:
			return finding{verdict: fail, seen: fmt.Sprintf("%s, and the proxy keeps them %v", seen, extproc.DefaultIdle)}
		case lasted < legIdle:
			return finding{verdict: fail, seen: fmt.Sprintf("%s, and sidecars keep them %v", seen, legIdle)}
		}
		return finding{verdict: ok, seen: seen + ", later than its clients do"}
	})
}
