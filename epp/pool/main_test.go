package pool

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/epp"
)

func TestMain(m *testing.M) {
	if page := os.Getenv(servePage); page != "" {
		serveForBenchmark(page)
		return
	}
	goleak.VerifyTestMain(m)
}

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// scraperOf makes a scraper for the endpoint at addr that is ready to read.
func scraperOf(p *Pool, addr string) *scraper {
	var s set
	s.apply([]epp.Spec{{Name: "engine", Addr: netip.MustParseAddrPort(addr)}}, time.Now())
	scraper := &scraper{pool: p, member: s.members[0]}
	scraper.prepare()
	return scraper
}

// selfSigned makes a certificate and its key.
func selfSigned(t *testing.T) [2]*pem.Block {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "tandem"}, NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return [2]*pem.Block{{Type: "CERTIFICATE", Bytes: cert}, {Type: "PRIVATE KEY", Bytes: private}}
}

// fixed is a Discovery of pools that a test sends.
type fixed chan []epp.Spec

func (f fixed) Run(ctx context.Context, apply func([]epp.Spec)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case specs, more := <-f:
			if !more {
				return nil
			}
			apply(specs)
		}
	}
}

// ofPool returns a Discovery that finds one pool.
func ofPool(specs ...epp.Spec) fixed {
	f := make(fixed, 1)
	f <- specs
	return f
}

// start runs a pool until the test ends.
func start(t *testing.T, p *Pool) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("running the pool: %v", err)
		}
	})
}

// logged is a logger whose lines can be read.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.text.Bytes(), []byte(text))
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// signals returns the values of the signals that every engine reports.
func signals(waiting, running, usage float64) epp.Values {
	return epp.Values{}.With(epp.Waiting, waiting).With(epp.Running, running).With(epp.KVUsage, usage)
}

// problemsOf lists what Problems reports.
func problemsOf(p interface{ Problems(epp.Report) }) (problems []string) {
	p.Problems(func(field, format string, args ...any) {
		problems = append(problems, field+": "+fmt.Sprintf(format, args...))
	})
	return problems
}

// only returns a load of which one signal is known.
func only(s epp.Signal, value float64) epp.Load {
	return epp.Load{Signals: epp.Values{}.With(s, value)}
}
