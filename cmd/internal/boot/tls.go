package boot

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// recheckInterval bounds how often handshakes look at the certificate
	// files: at most two stat calls in this time.
	recheckInterval = time.Second
	// selfSignedFor is long because a process does not renew it; nobody can
	// verify it anyway.
	selfSignedFor = 10 * 365 * 24 * time.Hour
)

// ServerTLS makes the TLS setup of a server, TLS 1.2 or newer. dir holds
// tls.crt and tls.key, as a mounted Kubernetes secret does; when they change,
// the next handshake takes the new ones, and a broken pair keeps the last good
// one in use. An empty dir means a self-signed certificate made now. The error
// is an [Exit] with CodeConfig.
func ServerTLS(dir string, log *slog.Logger) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if dir == "" {
		cert, err := selfSigned(time.Now())
		if err != nil {
			return nil, Configf("making a certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{cert}
		return config, nil
	}
	files := &certFiles{dir: dir, log: log, now: time.Now}
	if err := files.load(); err != nil {
		return nil, Configf("reading the certificate: %w", err)
	}
	config.GetCertificate = files.get
	return config, nil
}

// certFiles is a certificate that follows its files.
type certFiles struct {
	dir string
	log *slog.Logger
	now func() time.Time

	mu      sync.Mutex // guards what follows
	current *tls.Certificate
	stamp   [2]int64 // modification times at the last attempt to load, in ns
	checked time.Time
}

func (f *certFiles) paths() (cert, key string) {
	return filepath.Join(f.dir, "tls.crt"), filepath.Join(f.dir, "tls.key")
}

// get is tls.Config.GetCertificate.
func (f *certFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); now.Sub(f.checked) >= recheckInterval {
		f.checked = now
		if err := f.reload(); err != nil {
			f.log.Warn("certificate not reloaded, keeping the last one", "error", err)
		}
	}
	return f.current, nil
}

// load reads the pair for the first time.
func (f *certFiles) load() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checked = f.now()
	return f.reload()
}

// reload reads the pair if it changed since the last attempt, good or bad, so
// that a broken pair is reported once. The times are taken before the reading:
// a change in between is seen by the next call.
func (f *certFiles) reload() error {
	certPath, keyPath := f.paths()
	var stamp [2]int64
	for i, path := range []string{certPath, keyPath} {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		stamp[i] = info.ModTime().UnixNano()
	}
	if stamp == f.stamp {
		return nil
	}
	f.stamp = stamp
	cert, err := tls.LoadX509KeyPair(certPath, keyPath)
	if err != nil {
		return fmt.Errorf("%s and %s: %w", certPath, keyPath, err)
	}
	f.current = &cert
	return nil
}

// selfSigned makes a certificate for this host. ECDSA P-256 takes well under a
// millisecond, where RSA can hold up the start of a small pod for seconds.
func selfSigned(now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return tls.Certificate{}, err
	}
	names := []string{"localhost"}
	if host, err := os.Hostname(); err == nil {
		names = append(names, host)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "tandem self-signed"},
		NotBefore:    now.Add(-time.Hour), // clocks of clients may be behind
		NotAfter:     now.Add(selfSignedFor),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     names,
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
